//! Instruction sets: the choice, the proof that this CPU has it, and the macro that compiles a kernel for each.
//!
//! Every kernel is written once in plain Rust with a fixed order of operations, and compiled three times (AMX multiplies bf16 alone, and all else is AVX-512's). Rust
//! never contracts `a * b + c` and never reorders a float sum by itself, and `f32::mul_add` is correctly rounded
//! with or without the instruction, so the three copies give the same bits.
//!
//! This file does not know any kernel.

use std::fmt;
use std::str::FromStr;

/// An instruction set that kernels can be compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// What every CPU of the architecture has.
    Scalar,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
    /// The same with AVX-512 BF16 and AMX BF16, which the kernel lets this process use.
    Amx,
}

/// Why an instruction set cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IsaError {
    /// The word names none.
    #[error("unknown instruction set `{0}`, expected auto, scalar, avx2, avx512 or amx")]
    Unknown(String),
    /// This CPU cannot run it.
    #[error("this CPU lacks {wanted}, its best is {best}")]
    Missing {
        /// What was asked for.
        wanted: Isa,
        /// What there is.
        best: Isa,
    },
}

impl Isa {
    /// All of them, from the plainest.
    pub const ALL: [Isa; 4] = [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Amx];

    /// The best that this CPU has.
    #[must_use]
    pub fn best() -> Self {
        Self::ALL.into_iter().rfind(|isa| isa.is_here()).unwrap_or(Self::Scalar)
    }

    /// The one that a configuration names: `auto`, `scalar`, `avx2`, `avx512` or `amx`.
    ///
    /// *Errors*: an unknown word, or a set that this CPU lacks.
    pub fn parse(word: &str) -> Result<Self, IsaError> {
        if word == "auto" { Ok(Self::best()) } else { word.parse() }
    }

    /// Whether this CPU can run it.
    #[must_use]
    pub fn is_here(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_here()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Amx => {
                Self::Avx512.is_here()
                    && is_x86_feature_detected!("avx512bf16")
                    && super::matrix_unit::is_here()
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// The proof that this CPU can run it.
    pub(super) fn check(self) -> Result<Have, IsaError> {
        if self.is_here() {
            Ok(Have(self))
        } else {
            Err(IsaError::Missing { wanted: self, best: Self::best() })
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Amx => "amx",
        })
    }
}

impl FromStr for Isa {
    type Err = IsaError;

    fn from_str(word: &str) -> Result<Self, IsaError> {
        let isa = Self::ALL.into_iter().find(|isa| isa.to_string() == word);
        let isa = isa.ok_or_else(|| IsaError::Unknown(word.to_owned()))?;
        isa.check().map(|have| have.0)
    }
}

/// An instruction set that this CPU has been seen to have: only [`Isa::check`] makes one, so whoever holds it may
/// call code compiled for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Have(Isa);

impl Have {
    /// Which one.
    #[inline]
    pub(super) fn isa(self) -> Isa {
        self.0
    }
}

/// Compiles a function once for each instruction set. The function made takes a [`Have`] first and picks the copy.
macro_rules! on_every_isa {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $out:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name(isa: $crate::cpu::isa::Have, $($arg: $ty),*) $(-> $out)? {
            #[allow(clippy::too_many_arguments)]
            #[inline(always)]
            fn body($($arg: $ty),*) $(-> $out)? $body
            #[cfg(target_arch = "x86_64")]
            #[allow(clippy::too_many_arguments)]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            fn avx512($($arg: $ty),*) $(-> $out)? { body($($arg),*) }
            #[cfg(target_arch = "x86_64")]
            #[allow(clippy::too_many_arguments)]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $ty),*) $(-> $out)? { body($($arg),*) }
            match isa.isa() {
                // SAFETY: a `Have` of this set exists only where the CPU was seen to have its features.
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::isa::Isa::Avx512 | $crate::cpu::isa::Isa::Amx => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::isa::Isa::Avx2 => unsafe { avx2($($arg),*) },
                _ => body($($arg),*),
            }
        }
    };
}
pub(super) use on_every_isa;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_names_an_instruction_set_or_leaves_it_to_the_cpu() {
        assert_eq!(Isa::parse("auto"), Ok(Isa::best()));
        assert_eq!(Isa::parse("scalar"), Ok(Isa::Scalar));
        assert_eq!(Isa::parse("sse9"), Err(IsaError::Unknown("sse9".into())));
    }

    #[test]
    fn the_best_instruction_set_is_here_and_none_above_it_is() {
        assert!(Isa::best().is_here());
        for isa in Isa::ALL.into_iter().filter(|isa| *isa > Isa::best()) {
            assert_eq!(isa.check().unwrap_err(), IsaError::Missing { wanted: isa, best: Isa::best() });
        }
    }
}
