#include "eval/seccomp.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace octet::eval {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
#error "add this architecture's AUDIT_ARCH_ constant"
#endif

// Refused whatever their arguments. Architectures lack some of the older ones.
constexpr uint32_t kRefused[] = {
    // the network, and other processes' memory, messages and signals
    __NR_socket,
    __NR_socketpair,
    __NR_connect,
    __NR_bind,
    __NR_listen,
    __NR_accept,
    __NR_accept4,
    __NR_sendto,
    __NR_sendmsg,
    __NR_sendmmsg,
    __NR_ptrace,
    __NR_process_vm_readv,
    __NR_process_vm_writev,
    __NR_kill,
    __NR_tkill,
    __NR_tgkill,
    __NR_rt_sigqueueinfo,
    __NR_rt_tgsigqueueinfo,
    __NR_shmget,
    __NR_msgget,
    __NR_semget,
    __NR_mq_open,
    __NR_memfd_create,
    // the file system
    __NR_unlinkat,
    __NR_renameat2,
    __NR_mkdirat,
    __NR_linkat,
    __NR_symlinkat,
    __NR_mknodat,
    __NR_truncate,
    __NR_fchmod,
    __NR_fchmodat,
    __NR_fchown,
    __NR_fchownat,
    __NR_utimensat,
    __NR_setxattr,
    __NR_lsetxattr,
    __NR_fsetxattr,
    __NR_removexattr,
    __NR_lremovexattr,
    __NR_fremovexattr,
    __NR_flock,
    __NR_mount,
    __NR_umount2,
    __NR_pivot_root,
    __NR_chroot,
    // the system, and ways around this filter
    __NR_io_uring_setup,
    __NR_bpf,
    __NR_unshare,
    __NR_setns,
    __NR_keyctl,
    __NR_add_key,
    __NR_request_key,
    __NR_perf_event_open,
    __NR_userfaultfd,
    __NR_personality,
    __NR_reboot,
    __NR_sethostname,
    __NR_settimeofday,
    __NR_clock_settime,
    __NR_init_module,
    __NR_finit_module,
    __NR_delete_module,
    __NR_kexec_load,
    __NR_swapon,
    __NR_swapoff,
    __NR_acct,
    __NR_quotactl,
    __NR_sched_setaffinity,
    __NR_sched_setparam,
    __NR_ioprio_set,
    __NR_migrate_pages,
    __NR_move_pages,
    __NR_shmctl,
    __NR_msgctl,
    __NR_msgsnd,
    __NR_semctl,
    __NR_semop,
    __NR_setpriority,
    __NR_sched_setscheduler,
    __NR_sched_setattr,
    __NR_open_by_handle_at,
    __NR_name_to_handle_at,
    __NR_fanotify_init,
    __NR_setuid,
    __NR_setgid,
    __NR_setresuid,
#ifdef __NR_fork
    __NR_fork,
    __NR_vfork,
    __NR_creat,
    __NR_unlink,
    __NR_rename,
    __NR_mkdir,
    __NR_rmdir,
    __NR_link,
    __NR_symlink,
    __NR_mknod,
    __NR_chmod,
    __NR_chown,
    __NR_lchown,
    __NR_utime,
    __NR_utimes,
    __NR_futimesat,
#endif
#ifdef __NR_renameat
    __NR_renameat,
#endif
};

// Calls from this number on, the same ones on every architecture, are newer than what programs
// need: callers know what to do without them. Among them are new ways to mount, to open and to
// change files, and whatever a later kernel brings. Those that are let through come after.
constexpr uint32_t kFirstNew = 424;
constexpr uint32_t kNewAllowed[] = {
    436,  // close_range
    439,  // faccessat2
    441,  // epoll_pwait2
    449,  // futex_waitv
};

constexpr uint32_t kOpensToWrite = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_APPEND;
constexpr uint32_t kRefuse = SECCOMP_RET_ERRNO | EPERM;

// The low half of argument `index` of a call.
constexpr uint32_t argument(int index) {
  return static_cast<uint32_t>(offsetof(seccomp_data, args) + 8 * static_cast<size_t>(index));
}
constexpr sock_filter load(uint32_t offset) {
  return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset);
}
constexpr sock_filter end(uint32_t action) {
  return BPF_STMT(BPF_RET | BPF_K, action);
}
// Skips the next `count` instructions unless the loaded value is `value`.
constexpr sock_filter unless(uint32_t value, uint8_t count) {
  return BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, count);
}
// Skips the next instruction unless the loaded value has one of `bits`.
constexpr sock_filter unless_any(uint32_t bits) {
  return BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1);
}
constexpr sock_filter if_any(uint32_t bits) {
  return BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 1, 0);
}

constexpr size_t kLength =
    4 + 3 + 2 * std::size(kRefused) + 2 + 2 * std::size(kNewAllowed) + 2 + 4 * 5 + 4 * 5 + 1;

class Filter {
 public:
  constexpr Filter() {
    add(load(offsetof(seccomp_data, arch)));
    add(unless(kArchitecture, 1));
    add(BPF_JUMP(BPF_JMP | BPF_JA, 1, 0, 0));
    add(end(SECCOMP_RET_KILL_PROCESS));
    add(load(offsetof(seccomp_data, nr)));
    // The x32 form of x86-64's calls.
    add(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1));
    add(end(SECCOMP_RET_KILL_PROCESS));
    for (const uint32_t call : kRefused) refuse(call, kRefuse);
    add(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, kFirstNew, 0, 2 * std::size(kNewAllowed) + 1));
    for (const uint32_t call : kNewAllowed) refuse(call, SECCOMP_RET_ALLOW);
    add(end(SECCOMP_RET_ERRNO | ENOSYS));
    // No terminal is typed into, no flag of a file is changed: nothing here is a device.
    refuse(__NR_ioctl, SECCOMP_RET_ERRNO | ENOTTY);
    // Threads are allowed, processes are not.
    refuse_by_argument(__NR_clone, 0, if_any(CLONE_THREAD));
#ifdef __NR_open
    refuse_by_argument(__NR_open, 1, unless_any(kOpensToWrite));
#endif
    refuse_by_argument(__NR_openat, 2, unless_any(kOpensToWrite));
    // No signal to another by way of a descriptor's owner.
    for (const uint32_t command : {F_SETOWN, F_SETOWN_EX, F_SETSIG}) {
      refuse_command(__NR_fcntl, 1, command);
    }
    // It ends when what started it ends.
    refuse_command(__NR_prctl, 0, PR_SET_PDEATHSIG);
    // Limits of this process alone (0).
    refuse_by_argument(__NR_prlimit64, 0, BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0));
    add(end(SECCOMP_RET_ALLOW));
  }
  const sock_filter* data() const {
    return code_.data();
  }
  size_t size() const {
    return size_;
  }

 private:
  constexpr void add(const sock_filter& instruction) {
    code_[size_++] = instruction;
  }
  constexpr void refuse(uint32_t call, uint32_t how) {
    add(unless(call, 1));
    add(end(how));
  }
  // Where one argument is `command`.
  constexpr void refuse_command(uint32_t call, int index, uint32_t command) {
    add(unless(call, 4));
    add(load(argument(index)));
    add(unless(command, 1));
    add(end(kRefuse));
    add(load(offsetof(seccomp_data, nr)));
  }
  // `skip` skips the refusal where the argument is harmless. The number is gone from the
  // accumulator then, so a harmless call is allowed here.
  constexpr void refuse_by_argument(uint32_t call, int index, const sock_filter& skip) {
    add(unless(call, 4));
    add(load(argument(index)));
    add(skip);
    add(end(kRefuse));
    add(end(SECCOMP_RET_ALLOW));
  }

  std::array<sock_filter, kLength> code_{};
  size_t size_ = 0;
};

constexpr Filter kFilter;

}  // namespace

bool enter_seccomp() {
  const sock_fprog program{static_cast<unsigned short>(kFilter.size()),
                           const_cast<sock_filter*>(kFilter.data())};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace octet::eval
