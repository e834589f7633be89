// Hides instruction sets from every CPUID of this process: MASK_CPU=avx2 | avx2_vnni | avx512 | avx512_bf16
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cpuid.h>
#define ARCH_SET_CPUID 0x1012
static int level; // 1 avx2, 2 avx2_vnni, 3 avx512, 4 avx512+vnni+bf16
static struct sigaction old;
static void handler(int sig, siginfo_t *info, void *context) {
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    unsigned char *ip = (unsigned char *)r[REG_RIP];
    if (!(info->si_code == SI_KERNEL && ip && ip[0] == 0x0f && ip[1] == 0xa2)) {
        signal(SIGSEGV, SIG_DFL); return;
    }
    unsigned leaf = r[REG_RAX], sub = r[REG_RCX], a, b, c, d;
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 1);
    __cpuid_count(leaf, sub, a, b, c, d);
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0);
    if (leaf == 7 && sub == 0) {
        unsigned f512b = 1u<<16|1u<<17|1u<<21|1u<<26|1u<<27|1u<<28|1u<<30|1u<<31;
        unsigned f512c = 1u<<1|1u<<6|1u<<11|1u<<12|1u<<14;
        unsigned f512d = 1u<<2|1u<<3|1u<<8|1u<<23, amx = 1u<<22|1u<<24|1u<<25;
        d &= ~(amx | 1u<<23);
        if (level <= 2) { b &= ~f512b; c &= ~f512c; d &= ~f512d; }
        if (level == 3) { c &= ~(1u<<11); }
    }
    if (leaf == 7 && sub == 1) {
        a &= ~(1u<<21);              // amx_fp16
        if (level == 1) a &= ~(1u<<4);
        if (level <= 3) a &= ~(1u<<5); // avx512_bf16
        if (level == 3) a &= ~(1u<<4);
        a &= ~(1u<<23);              // avx_ifma
        d &= ~(1u<<4|1u<<5|1u<<10|1u<<19);
    }
    if (leaf == 0x1d || leaf == 0x1e) a = b = c = d = 0;
    if (leaf == 0xd && sub == 0) { a &= level <= 2 ? 0x7 : 0xe7; }
    r[REG_RAX] = a; r[REG_RBX] = b; r[REG_RCX] = c; r[REG_RDX] = d;
    r[REG_RIP] += 2;
}
__attribute__((constructor)) static void start(void) {
    const char *m = getenv("MASK_CPU");
    if (!m) return;
    level = !strcmp(m, "avx2") ? 1 : !strcmp(m, "avx2_vnni") ? 2 : !strcmp(m, "avx512") ? 3 : 4;
    struct sigaction s; memset(&s, 0, sizeof s); s.sa_sigaction = handler; s.sa_flags = SA_SIGINFO | SA_NODEFER; 
    sigaction(SIGSEGV, &s, &old);
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0);
}
