"""The numbers of the kernel's system calls, by machine (as uname(2) names it).

From the kernel's ``arch/x86/entry/syscalls/syscall_64.tbl`` and, for aarch64,
``include/uapi/asm-generic/unistd.h``, which its ``asm/unistd.h`` includes; up to Linux 6.19. Each
line is a number and the names from there on. A number that is not here is a system call that this
package does not know, which filters treat as one that the kernel does not have.
"""

from __future__ import annotations

_X86_64 = """
  0 read write open close stat fstat lstat poll
  8 lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn
 16 ioctl pread64 pwrite64 readv writev access pipe select
 24 sched_yield mremap msync mincore madvise shmget shmat shmctl
 32 dup dup2 pause nanosleep getitimer alarm setitimer getpid
 40 sendfile socket connect accept sendto recvfrom sendmsg recvmsg
 48 shutdown bind listen getsockname getpeername socketpair setsockopt getsockopt
 56 clone fork vfork execve exit wait4 kill uname
 64 semget semop semctl shmdt msgget msgsnd msgrcv msgctl
 72 fcntl flock fsync fdatasync truncate ftruncate getdents getcwd
 80 chdir fchdir rename mkdir rmdir creat link unlink
 88 symlink readlink chmod fchmod chown fchown lchown umask
 96 gettimeofday getrlimit getrusage sysinfo times ptrace getuid syslog
104 getgid setuid setgid geteuid getegid setpgid getppid getpgrp
112 setsid setreuid setregid getgroups setgroups setresuid getresuid setresgid
120 getresgid getpgid setfsuid setfsgid getsid capget capset rt_sigpending
128 rt_sigtimedwait rt_sigqueueinfo rt_sigsuspend sigaltstack utime mknod uselib personality
136 ustat statfs fstatfs sysfs getpriority setpriority sched_setparam sched_getparam
144 sched_setscheduler sched_getscheduler sched_get_priority_max sched_get_priority_min
148 sched_rr_get_interval mlock munlock mlockall munlockall vhangup modify_ldt pivot_root
156 _sysctl prctl arch_prctl adjtimex setrlimit chroot sync acct
164 settimeofday mount umount2 swapon swapoff reboot sethostname setdomainname
172 iopl ioperm create_module init_module delete_module get_kernel_syms query_module quotactl
180 nfsservctl getpmsg putpmsg afs_syscall tuxcall security gettid readahead
188 setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr
196 flistxattr removexattr lremovexattr fremovexattr tkill time futex sched_setaffinity
204 sched_getaffinity set_thread_area io_setup io_destroy io_getevents io_submit io_cancel
211 get_thread_area lookup_dcookie epoll_create epoll_ctl_old epoll_wait_old remap_file_pages
217 getdents64 set_tid_address restart_syscall semtimedop fadvise64 timer_create timer_settime
224 timer_gettime timer_getoverrun timer_delete clock_settime clock_gettime clock_getres
230 clock_nanosleep exit_group epoll_wait epoll_ctl tgkill utimes vserver mbind
238 set_mempolicy get_mempolicy mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify
245 mq_getsetattr kexec_load waitid add_key request_key keyctl ioprio_set ioprio_get
253 inotify_init inotify_add_watch inotify_rm_watch migrate_pages openat mkdirat mknodat
260 fchownat futimesat newfstatat unlinkat renameat linkat symlinkat readlinkat
268 fchmodat faccessat pselect6 ppoll unshare set_robust_list get_robust_list splice
276 tee sync_file_range vmsplice move_pages utimensat epoll_pwait signalfd timerfd_create
284 eventfd fallocate timerfd_settime timerfd_gettime accept4 signalfd4 eventfd2 epoll_create1
292 dup3 pipe2 inotify_init1 preadv pwritev rt_tgsigqueueinfo perf_event_open recvmmsg
300 fanotify_init fanotify_mark prlimit64 name_to_handle_at open_by_handle_at clock_adjtime
306 syncfs sendmmsg setns getcpu process_vm_readv process_vm_writev kcmp finit_module
314 sched_setattr sched_getattr renameat2 seccomp getrandom memfd_create kexec_file_load bpf
322 execveat userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect
330 pkey_alloc pkey_free statx io_pgetevents rseq uretprobe uprobe
"""

#: The table that newer architectures share, with what ``asm/unistd.h`` of arm64 asks for (renameat,
#: getrlimit, setrlimit).
_GENERIC = """
  0 io_setup io_destroy io_submit io_cancel io_getevents setxattr lsetxattr fsetxattr
  8 getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr
 16 fremovexattr getcwd lookup_dcookie eventfd2 epoll_create1 epoll_ctl epoll_pwait dup
 24 dup3 fcntl inotify_init1 inotify_add_watch inotify_rm_watch ioctl ioprio_set ioprio_get
 32 flock mknodat mkdirat unlinkat symlinkat linkat renameat umount2
 40 mount pivot_root nfsservctl statfs fstatfs truncate ftruncate fallocate
 48 faccessat chdir fchdir chroot fchmod fchmodat fchownat fchown
 56 openat close vhangup pipe2 quotactl getdents64 lseek read
 64 write readv writev pread64 pwrite64 preadv pwritev sendfile
 72 pselect6 ppoll signalfd4 vmsplice splice tee readlinkat newfstatat
 80 fstat sync fsync fdatasync sync_file_range timerfd_create timerfd_settime timerfd_gettime
 88 utimensat acct capget capset personality exit exit_group waitid
 96 set_tid_address unshare futex set_robust_list get_robust_list nanosleep getitimer
103 setitimer kexec_load init_module delete_module timer_create timer_gettime timer_getoverrun
110 timer_settime timer_delete clock_settime clock_gettime clock_getres clock_nanosleep syslog
117 ptrace sched_setparam sched_setscheduler sched_getscheduler sched_getparam
122 sched_setaffinity sched_getaffinity sched_yield sched_get_priority_max
126 sched_get_priority_min sched_rr_get_interval restart_syscall kill tkill tgkill sigaltstack
133 rt_sigsuspend rt_sigaction rt_sigprocmask rt_sigpending rt_sigtimedwait rt_sigqueueinfo
139 rt_sigreturn setpriority getpriority reboot setregid setgid setreuid setuid
147 setresuid getresuid setresgid getresgid setfsuid setfsgid times setpgid
155 getpgid getsid setsid getgroups setgroups uname sethostname setdomainname
163 getrlimit setrlimit getrusage umask prctl getcpu gettimeofday settimeofday
171 adjtimex getpid getppid getuid geteuid getgid getegid gettid
179 sysinfo mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr msgget
187 msgctl msgrcv msgsnd semget semctl semtimedop semop shmget
195 shmctl shmat shmdt socket socketpair bind listen accept
203 connect getsockname getpeername sendto recvfrom setsockopt getsockopt shutdown
211 sendmsg recvmsg readahead brk munmap mremap add_key request_key
219 keyctl clone execve mmap fadvise64 swapon swapoff mprotect
227 msync mlock munlock mlockall munlockall mincore madvise remap_file_pages
235 mbind get_mempolicy set_mempolicy migrate_pages move_pages rt_tgsigqueueinfo
241 perf_event_open accept4 recvmmsg
260 wait4 prlimit64 fanotify_init fanotify_mark name_to_handle_at open_by_handle_at
266 clock_adjtime syncfs setns sendmmsg process_vm_readv process_vm_writev kcmp finit_module
274 sched_setattr sched_getattr renameat2 seccomp getrandom memfd_create bpf execveat
282 userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc
290 pkey_free statx io_pgetevents rseq kexec_file_load
"""

#: Since Linux 5.1 a new call has the same number everywhere.
_EVERYWHERE = """
424 pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount
430 fsopen fsconfig fsmount fspick pidfd_open clone3 close_range openat2
438 pidfd_getfd faccessat2 process_madvise epoll_pwait2 mount_setattr quotactl_fd
444 landlock_create_ruleset landlock_add_rule landlock_restrict_self memfd_secret
448 process_mrelease futex_waitv set_mempolicy_home_node cachestat fchmodat2 map_shadow_stack
454 futex_wake futex_wait futex_requeue statmount listmount lsm_get_self_attr
460 lsm_set_self_attr lsm_list_modules mseal setxattrat getxattrat listxattrat removexattrat
467 open_tree_attr file_getattr file_setattr listns
"""


def _read(*tables: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for table in tables:
        for line in table.split("\n"):
            if line:
                first, *names = line.split()
                found.update({name: int(first) + place for place, name in enumerate(names)})
    return found


NUMBERS: dict[str, dict[str, int]] = {
    "x86_64": _read(_X86_64, _EVERYWHERE),
    "aarch64": _read(_GENERIC, _EVERYWHERE),
}

#: linux/audit.h: AUDIT_ARCH_* of 64-bit programs; the same kernels run 32-bit ones under others.
ARCHITECTURES: dict[str, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
