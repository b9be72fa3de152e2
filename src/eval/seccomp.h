// The filter of system calls that a program of eval/program.h runs under.
#pragma once

namespace octet::eval {

// From now on, and in all that this thread executes: sockets, new processes, signals to others,
// writing to the file system, and ways around the filter fail with EPERM; system calls of another
// architecture kill. Async-signal-safe. False (and errno) if the kernel has no seccomp.
bool enter_seccomp();

}  // namespace octet::eval
