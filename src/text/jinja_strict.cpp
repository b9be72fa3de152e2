#ifdef OCTET_JINJA
#include "text/jinja_strict.h"

#include <jinja/parser.h>
#include <jinja/runtime.h>

#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

namespace octet::text {
namespace {

using jinja::is_stmt;
using jinja::is_val;
using jinja::mk_val;
using jinja::statement;
using jinja::statement_ptr;
using jinja::value;

// How a template writes an expression, as far as that is short.
std::string name_of(const statement& node);

// An expression that must have a value, since something in it is asked for.
struct Defined : jinja::expression {
  explicit Defined(statement_ptr node) : inner(std::move(node)) { pos = inner->pos; }
  value execute_impl(jinja::context& context) const override {
    value found = inner->execute(context);
    if (found->is_undefined()) {
      throw std::runtime_error("'" + name_of(*inner) + "' is undefined, and has no members");
    }
    return found;
  }
  statement_ptr inner;
};

std::string name_of(const statement& node) {
  if (const auto* wrapped = dynamic_cast<const Defined*>(&node)) return name_of(*wrapped->inner);
  if (const auto* name = dynamic_cast<const jinja::identifier*>(&node)) return name->val;
  const auto* member = dynamic_cast<const jinja::member_expression*>(&node);
  if (!member) return "..";
  const std::string object = name_of(*member->object);
  if (!member->computed) return object + "." + name_of(*member->property);
  if (const auto* index = jinja::cast_stmt<jinja::integer_literal>(member->property)) {
    return object + "[" + std::to_string(index->val) + "]";
  }
  if (const auto* key = jinja::cast_stmt<jinja::string_literal>(member->property)) {
    return object + "['" + key->val + "']";
  }
  return object + "[..]";
}

struct Constant : jinja::expression {
  explicit Constant(value known) : result(std::move(known)) {}
  value execute_impl(jinja::context&) const override { return result; }
  value result;
};

bool is_int(const value& x) {
  return is_val<jinja::value_int>(x);
}
bool is_number(const value& x) {
  return is_int(x) || is_val<jinja::value_float>(x);
}
bool is_string(const value& x) {
  return is_val<jinja::value_string>(x);
}

int64_t calculate(char op, int64_t a, int64_t b) {
  int64_t result = 0;
  const bool overflows = op == '+'   ? __builtin_add_overflow(a, b, &result)
                         : op == '-' ? __builtin_sub_overflow(a, b, &result)
                                     : __builtin_mul_overflow(a, b, &result);
  if (overflows) throw std::runtime_error("a whole number beyond 64 bits");
  return result;
}

// Python's: it has the sign of the divisor.
int64_t remainder(int64_t a, int64_t b) {
  if (b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
double remainder(double a, double b) {
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

struct Arithmetic : jinja::binary_expression {
  using binary_expression::binary_expression;
  value execute_impl(jinja::context& context) const override {
    value a = left->execute(context), b = right->execute(context);
    const char sign = op.value[0];
    if (is_number(a) && is_number(b)) {
      const bool divides = sign == '/' || sign == '%';
      if (divides && b->as_float() == 0) {
        throw std::runtime_error(sign == '/' ? "division by zero" : "modulo by zero");
      }
      if (is_int(a) && is_int(b) && sign != '/') {
        return mk_val<jinja::value_int>(sign == '%' ? remainder(a->as_int(), b->as_int())
                                                    : calculate(sign, a->as_int(), b->as_int()));
      }
      if (sign == '%') {
        return mk_val<jinja::value_float>(remainder(a->as_float(), b->as_float()));
      }
    }
    if (sign == '+' && ((is_string(a) && is_number(b)) || (is_number(a) && is_string(b)))) {
      throw std::runtime_error("text and a number cannot be added; ~ joins them");
    }
    return binary_expression(op, std::make_unique<Constant>(std::move(a)),
                             std::make_unique<Constant>(std::move(b)))
        .execute_impl(context);
  }
};

// Calls `take` for each child that is evaluated.
void for_each_child(statement& node, const std::function<void(statement_ptr&)>& take) {
  const auto all = [&](jinja::statements& list) {
    for (statement_ptr& child : list) take(child);
  };
  if (auto* n = dynamic_cast<jinja::if_statement*>(&node)) {
    take(n->test);
    all(n->body);
    all(n->alternate);
  }
  if (auto* n = dynamic_cast<jinja::for_statement*>(&node)) {
    take(n->iterable);
    all(n->body);
    all(n->default_block);
  }
  if (auto* n = dynamic_cast<jinja::set_statement*>(&node)) {
    take(n->val);
    all(n->body);
  }
  if (auto* n = dynamic_cast<jinja::macro_statement*>(&node)) {
    all(n->args);
    all(n->body);
  }
  if (auto* n = dynamic_cast<jinja::member_expression*>(&node)) {
    take(n->object);
    if (n->computed) take(n->property);
  }
  if (auto* n = dynamic_cast<jinja::call_expression*>(&node)) {
    take(n->callee);
    all(n->args);
  }
  if (auto* n = dynamic_cast<jinja::array_literal*>(&node)) {
    all(n->val);
  }
  if (auto* n = dynamic_cast<jinja::tuple_literal*>(&node)) {
    all(n->val);
  }
  if (auto* n = dynamic_cast<jinja::object_literal*>(&node)) {
    for (auto& [key, held] : n->val) {
      take(key);
      take(held);
    }
  }
  if (auto* n = dynamic_cast<jinja::binary_expression*>(&node)) {
    take(n->left);
    take(n->right);
  }
  if (auto* n = dynamic_cast<jinja::filter_expression*>(&node)) {
    take(n->operand);
    take(n->filter);
  }
  if (auto* n = dynamic_cast<jinja::filter_statement*>(&node)) {
    take(n->filter);
    all(n->body);
  }
  if (auto* n = dynamic_cast<jinja::select_expression*>(&node)) {
    take(n->lhs);
    take(n->test);
  }
  if (auto* n = dynamic_cast<jinja::test_expression*>(&node)) {
    take(n->operand);
    take(n->test);
  }
  if (auto* n = dynamic_cast<jinja::unary_expression*>(&node)) {
    take(n->argument);
  }
  if (auto* n = dynamic_cast<jinja::slice_expression*>(&node)) {
    take(n->start_expr);
    take(n->stop_expr);
    take(n->step_expr);
  }
  if (auto* n = dynamic_cast<jinja::keyword_argument_expression*>(&node)) {
    take(n->val);
  }
  if (auto* n = dynamic_cast<jinja::spread_expression*>(&node)) {
    take(n->argument);
  }
  if (auto* n = dynamic_cast<jinja::call_statement*>(&node)) {
    take(n->call);
    all(n->caller_args);
    all(n->body);
  }
  if (auto* n = dynamic_cast<jinja::ternary_expression*>(&node)) {
    take(n->condition);
    take(n->true_expr);
    take(n->false_expr);
  }
}

void make_strict(statement_ptr& node) {
  if (!node) return;
  for_each_child(*node, [](statement_ptr& child) { make_strict(child); });
  if (auto* member = dynamic_cast<jinja::member_expression*>(node.get())) {
    member->object = std::make_unique<Defined>(std::move(member->object));
  } else if (auto* binary = dynamic_cast<jinja::binary_expression*>(node.get());
             binary && binary->op.value.size() == 1 &&
             std::string("+-*/%").find(binary->op.value) != std::string::npos) {
    auto strict =
        std::make_unique<Arithmetic>(binary->op, std::move(binary->left), std::move(binary->right));
    strict->pos = binary->pos;
    node = std::move(strict);
  }
}

}  // namespace

void make_strict(jinja::program& program) {
  for (statement_ptr& node : program.body) make_strict(node);
}

}  // namespace octet::text
#endif
