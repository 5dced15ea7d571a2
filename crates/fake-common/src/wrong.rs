//! Results that are wrong, where a test asks for it.

use crate::knobs::word;
use crate::numbers::Numbers;

/// How a result is wrong.
#[derive(Clone, Copy)]
pub enum Wrong {
    /// Its first number is off by an eighth of itself and sixteen.
    Visible,
    /// Its first number is off by its last bit.
    Bit,
}

impl Wrong {
    /// What a variable asks for.
    pub fn asked_by(variable: &str) -> Option<Self> {
        word(variable).map(|how| if how == "bit" { Self::Bit } else { Self::Visible })
    }

    /// Makes a result wrong.
    ///
    /// # Safety
    /// It lies at this address, aligned, has a first number, and nobody else uses it.
    pub unsafe fn spoil(self, numbers: Numbers, at: usize) {
        match self {
            // SAFETY: there is a first number, and the lowest byte of any number comes first.
            Self::Bit => unsafe { *(at as *mut u8) ^= 1 },
            // SAFETY: there is a first number.
            Self::Visible => unsafe {
                let was = numbers.read(at, 0);
                numbers.write(at, 0, was * 1.125 + 16.0);
            },
        }
    }
}
