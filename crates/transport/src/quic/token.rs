//! The one secret that the hosts of a cluster share.
//!
//! 256 random bits and nothing else: not a password, so it is never stretched, and one that is shorter is refused rather
//! than padded. This file does not know where a token is kept; whoever reads it from a file or a variable hands in the text.

use std::fmt;
use std::str::FromStr;

/// Bytes of a token.
const BYTES: usize = 32;
/// Digits of its text.
const DIGITS: usize = 2 * BYTES;
/// A token with fewer different bytes was typed, not drawn. 32 random bytes have this few with a chance below 2^-90.
const LEAST_KINDS: usize = 12;

/// The shared secret. Its text is 64 hexadecimal digits; `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token([u8; BYTES]);

/// Why a text is no token. None of these repeats the text: it may be most of a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Too short or too long.
    #[error(
        "a token has {DIGITS} hexadecimal digits, this text has {got} characters\nhint: `dtrain token new` makes one"
    )]
    Length {
        /// Its characters.
        got: usize,
    },
    /// Something that is no digit.
    #[error("character {at} of the token is no hexadecimal digit\nhint: `dtrain token new` makes one")]
    Digit {
        /// The first such character, counted from 1.
        at: usize,
    },
    /// Digits that nobody drew.
    #[error(
        "the token has only {kinds} different bytes, so it is not random\nhint: `dtrain token new` makes one"
    )]
    NotRandom {
        /// Different bytes in it.
        kinds: usize,
    },
}

impl Token {
    /// Draws a new token from the system's random numbers.
    ///
    /// *Panics* if the system has none: nothing that follows would be secret.
    #[must_use]
    pub fn generate() -> Self {
        let mut bytes = [0; BYTES];
        fill_random(&mut bytes);
        Self(bytes)
    }

    /// The text that [`Token::from_str`] reads. Whoever calls this shows the secret.
    #[must_use]
    pub fn reveal(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// A key for one purpose; keys of different purposes say nothing about one another or the token.
    pub(super) fn derive(&self, purpose: &str) -> [u8; 32] {
        blake3::derive_key(purpose, &self.0)
    }
}

/// Fills `bytes` from the system's random numbers. *Panics* if it has none.
pub(super) fn fill_random(bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        match rustix::rand::getrandom(&mut bytes[filled..], flags) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the system has no random numbers: {error}"),
        }
    }
}

impl FromStr for Token {
    type Err = TokenError;

    /// Reads a token; white space around it, as a file has at its end, is left out.
    fn from_str(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        let got = text.chars().count();
        if got != DIGITS {
            return Err(TokenError::Length { got });
        }
        let mut bytes = [0; BYTES];
        for (at, digit) in text.chars().enumerate() {
            let value = digit.to_digit(16).ok_or(TokenError::Digit { at: at + 1 })?;
            bytes[at / 2] = bytes[at / 2] << 4 | value as u8;
        }
        let mut sorted = bytes;
        sorted.sort_unstable();
        let kinds = 1 + sorted.windows(2).filter(|pair| pair[0] != pair[1]).count();
        if kinds < LEAST_KINDS {
            return Err(TokenError::NotRandom { kinds });
        }
        Ok(Self(bytes))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_its_text_and_no_two_are_alike() {
        let (one, other) = (Token::generate(), Token::generate());
        assert_ne!(one, other);
        assert_eq!(format!(" {}\n", one.reveal()).parse(), Ok(one.clone()));
        assert_eq!(one.reveal().to_uppercase().parse(), Ok(one));
    }

    #[test]
    fn a_short_a_long_and_a_garbled_text_are_refused_with_their_numbers() {
        let text = Token::generate().reveal();
        assert_eq!("".parse::<Token>(), Err(TokenError::Length { got: 0 }));
        assert_eq!(text[1..].parse::<Token>(), Err(TokenError::Length { got: 63 }));
        assert_eq!(format!("{text}0").parse::<Token>(), Err(TokenError::Length { got: 65 }));
        assert_eq!(format!("{}g", &text[1..]).parse::<Token>(), Err(TokenError::Digit { at: 64 }));
        assert_eq!("\u{fc}".repeat(64).parse::<Token>(), Err(TokenError::Digit { at: 1 }));
        assert_eq!("0".repeat(64).parse::<Token>(), Err(TokenError::NotRandom { kinds: 1 }));
        assert_eq!("0123456789abcdef".repeat(4).parse::<Token>(), Err(TokenError::NotRandom { kinds: 8 }));
    }

    #[test]
    fn neither_debug_nor_an_error_shows_any_of_it() {
        let token = Token::generate();
        let text = token.reveal();
        let shown = format!("{token:?} {}", text[1..].parse::<Token>().expect_err("too short"));
        assert!(text.as_bytes().windows(6).all(|part| {
            let part = std::str::from_utf8(part).expect("digits");
            !shown.contains(part)
        }));
    }

    #[test]
    fn keys_of_different_purposes_differ_and_are_the_same_everywhere() {
        let token: Token = (0..32).map(|i| format!("{i:02x}")).collect::<String>().parse().expect("a token");
        assert_ne!(token.derive("a"), token.derive("b"));
        assert_eq!(token.derive("a"), token.clone().derive("a"));
    }
}
