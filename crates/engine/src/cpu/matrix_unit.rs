//! Whether there is a matrix unit (AMX) that multiplies bf16, and whether this process may use it: it has to ask the kernel once.
//!
//! *Source*: Linux, `Documentation/arch/x86/xstate.rst`.
//!
//! This file does not know what is multiplied.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

/// Whether this CPU has it and this process may use it.
pub(super) fn is_here() -> bool {
    static HERE: OnceLock<bool> = OnceLock::new();
    *HERE.get_or_init(|| has_instructions() && may_use())
}

/// Tiles, and products of bf16 in them: bits 24 and 22 of leaf 7.
fn has_instructions() -> bool {
    let wanted = 1 << 24 | 1 << 22;
    __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).edx & wanted == wanted
}

/// Asks the kernel for the memory that a thread's tiles are kept in while another one runs. One before 5.16 says no.
fn may_use() -> bool {
    const ARCH_PRCTL: usize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const TILE_DATA: usize = 18;
    let answer: isize;
    // SAFETY: a system call that changes nothing but what this process may do.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => answer,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    answer == 0
}
