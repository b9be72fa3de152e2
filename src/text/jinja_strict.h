// Where the Jinja engine goes on with a value of its own, Python raises an error: a division by
// zero, a whole number that overflows, a member of something undefined.
#pragma once

namespace jinja {
struct program;
}

namespace octet::text {

// Exchanges the nodes of `program` that calculate, or look into a value, for such as throw
// std::runtime_error, with the reason, where Python's jinja2 raises one, or (numbers beyond 64
// bits) where it would go on with a number that the engine cannot hold. What jinja2 renders is
// rendered as before, but for the remainders of negative numbers, which become Python's.
void make_strict(jinja::program& program);

}  // namespace octet::text
