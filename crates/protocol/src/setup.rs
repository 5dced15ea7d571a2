//! What a rank is made of, as it crosses links: bytes of a value that only the program at both ends knows.
//!
//! Supervisor, node and links pass it on. It does not know data sets, models or configurations.

use crate::bytes::{from_bytes, to_bytes};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A value of the program's own in the encoding of all messages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RankSetup(Vec<u8>);

impl RankSetup {
    /// The bytes of `value`. *Panics* if its type cannot be written, which does not depend on the value.
    #[must_use]
    pub fn of<T: Serialize>(value: &T) -> Self {
        Self(to_bytes(value))
    }

    /// The value that was put in; `None` if these are the bytes of another type.
    #[must_use]
    pub fn read<T: DeserializeOwned>(&self) -> Option<T> {
        from_bytes(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_in_comes_out_and_nothing_else() {
        let value = ("runs/a".to_owned(), vec![2u32, 0], Some(7u64));
        let setup = RankSetup::of(&value);
        assert_eq!(setup.read(), Some(value));
        assert_eq!(setup.read::<(String, Vec<u32>)>(), None, "bytes are left over");
        assert_eq!(setup.read::<(u8, Vec<String>, u64)>(), None);
        assert_eq!(RankSetup::default().read::<u8>(), None);
    }
}
