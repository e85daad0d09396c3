/* Faults of a disk, for real: the N-th change of a file below one folder fails, is cut short, or is the last thing that
 * the process does.
 *
 * A library put before the C library sees only what passes through it, and the Rust code of safetensors renames its
 * files by a system call of its own. So the kernel is asked to hand over every system call that changes files (seccomp,
 * SECCOMP_RET_TRAP), whoever makes it; the handler below counts it and does it, or does what the case says. Its own
 * calls come from one known instruction, which the filter lets pass.
 *
 * fsync of files below the folder is counted and not done: killing a process loses nothing that it wrote, so that it
 * would only cost time here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef __x86_64__
#error "the registers of a system call are known for x86-64 only"
#endif

#define MOST_SEEN 4096

static char folder[4096];
static size_t folder_length;
static volatile int armed, fault_error, fault_half, fault_lasts;
static volatile long fault_at, seen;
static short seen_calls[MOST_SEEN];

long faults_do(long number, long a, long b, long c, long d, long e, long f);
extern char faults_after_do[];
__asm__(".text\n.globl faults_do\n.type faults_do,@function\nfaults_do:\n"
        "mov %rdi,%rax\nmov %rsi,%rdi\nmov %rdx,%rsi\nmov %rcx,%rdx\nmov %r8,%r10\nmov %r9,%r8\nmov 8(%rsp),%r9\n"
        "syscall\n.globl faults_after_do\nfaults_after_do:\nret\n");

static int below(const char *path) {
    return strncmp(path, folder, folder_length) == 0 && (path[folder_length] == '/' || path[folder_length] == 0);
}

static int descriptor_below(long descriptor) {
    char link[32] = "/proc/self/fd/", target[4096], digits[12];
    int n = 0, at = 14;
    if (descriptor < 0) return 0;
    do digits[n++] = '0' + descriptor % 10; while (descriptor /= 10);
    while (n) link[at++] = digits[--n];
    long length = faults_do(SYS_readlink, (long)link, (long)target, sizeof target - 1, 0, 0, 0);
    if (length < 0) return 0;
    target[length] = 0;
    return below(target);
}

static int path_below(long descriptor, long path) {
    const char *text = (const char *)path;
    return text[0] == '/' ? below(text) : descriptor_below((int)descriptor);
}

/* Whether the call changes something below the folder. */
static int concerns_us(long number, const long *a) {
    switch (number) {
    case SYS_openat: return (a[2] & O_CREAT) && path_below(a[0], a[1]);
    case SYS_open: return (a[1] & O_CREAT) && path_below(AT_FDCWD, a[0]);
    case SYS_creat: case SYS_mkdir: case SYS_rmdir: case SYS_unlink: case SYS_truncate: case SYS_rename:
    case SYS_link: case SYS_symlink:
        return path_below(AT_FDCWD, a[0]);
    case SYS_mkdirat: case SYS_unlinkat: case SYS_renameat: case SYS_renameat2: case SYS_linkat:
        return path_below(a[0], a[1]);
    default: return descriptor_below((int)a[0]); /* the calls that take a descriptor first */
    }
}

static int is_sync(long number) { return number == SYS_fsync || number == SYS_fdatasync; }

static long judge(long number, long *a) {
    if (!armed || !concerns_us(number, a)) goto doing;
    seen++;
    if (seen <= MOST_SEEN) seen_calls[seen - 1] = (short)number;
    if (fault_at && (seen == fault_at || (seen > fault_at && fault_lasts))) {
        if (!fault_error) faults_do(SYS_kill, faults_do(SYS_getpid, 0, 0, 0, 0, 0, 0), SIGKILL, 0, 0, 0, 0);
        if (seen == fault_at && fault_half && number == SYS_write && a[2] > 1) {
            fault_at++, fault_half = 0; /* half of it now, and the error at the next change */
            a[2] /= 2;
            goto doing;
        }
        return -fault_error;
    }
doing:
    if (is_sync(number) && descriptor_below((int)a[0])) return 0;
    return faults_do(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

static void on_trap(int signal, siginfo_t *info, void *context) {
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    long arguments[6] = {r[REG_RDI], r[REG_RSI], r[REG_RDX], r[REG_R10], r[REG_R8], r[REG_R9]};
    (void)signal;
    r[REG_RAX] = judge(info->si_syscall, arguments);
}

static const int TRAPPED[] = {
    SYS_open, SYS_openat, SYS_creat, SYS_write, SYS_writev, SYS_pwrite64, SYS_pwritev, SYS_pwritev2, SYS_ftruncate,
    SYS_truncate, SYS_fallocate, SYS_fsync, SYS_fdatasync, SYS_rename, SYS_renameat, SYS_renameat2, SYS_mkdir,
    SYS_mkdirat, SYS_rmdir, SYS_unlink, SYS_unlinkat, SYS_link, SYS_linkat, SYS_symlink,
};
#define TRAPPED_COUNT (int)(sizeof TRAPPED / sizeof *TRAPPED)

/* Hand over the calls of this process and its descendants from now on. 0, or the error number. */
int faults_install(const char *below_folder) {
    struct sock_filter code[8 + TRAPPED_COUNT + 2], *next = code;
    unsigned long from = (unsigned long)faults_after_do;
    struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
    strncpy(folder, below_folder, sizeof folder - 1);
    folder_length = strlen(folder);
    if (sigaction(SIGSYS, &action, NULL)) return errno;
#define LOAD(field) (struct sock_filter) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define UNLESS(value, skip) (struct sock_filter) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)(value), 0, skip)
#define ANSWER(value) (struct sock_filter) BPF_STMT(BPF_RET | BPF_K, value)
    *next++ = LOAD(instruction_pointer);
    *next++ = UNLESS(from, 3);
    *next++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4);
    *next++ = UNLESS(from >> 32, 1);
    *next++ = ANSWER(SECCOMP_RET_ALLOW);
    *next++ = LOAD(nr);
    for (int i = 0; i < TRAPPED_COUNT; i++)
        *next++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, TRAPPED[i], TRAPPED_COUNT - i, 0);
    *next++ = ANSWER(SECCOMP_RET_ALLOW);
    *next++ = ANSWER(SECCOMP_RET_TRAP);
    struct sock_fprog program = {.len = (unsigned short)(next - code), .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return errno;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) ? errno : 0;
}

/* Count from now on. At change `at` (0: none): the error, or SIGKILL where it is 0. `half`: a write is cut to half first.
 * `lasts`: every change after it fails too. */
void faults_arm(long at, int error, int half, int lasts) {
    fault_at = at, fault_error = error, fault_half = half, fault_lasts = lasts, seen = 0, armed = 1;
}

long faults_disarm(void) { return armed = 0, seen; }

int faults_call(long index) { return seen_calls[index]; }
