// One function compiled for several instruction sets.
#pragma once

// Compiles a function once for each of these ISAs and picks one at start-up. The bits are the same
// (no contraction, no reassociation), only the speed differs. Sanitizers run before the pick is
// made and would crash in it.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define OCTET_EXACT_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define OCTET_EXACT_CLONES
#endif
