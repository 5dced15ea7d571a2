//! What the ranks of a generation must share before they can meet, where their data plane needs such a thing: NCCL's
//! unique id.
//!
//! Rank 0 of a generation makes it, says it in its Reports of that generation, and the Directive of phase *sync* carries
//! it to all. To this crate it is opaque bytes: it does not know what makes them or what they open.

use serde::de::{Error, SeqAccess, Visitor};
use serde::ser::SerializeTuple;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// How long a bootstrap is: as NCCL's `ncclUniqueId`. *Units*: bytes.
pub const BOOTSTRAP_BYTES: usize = 128;

/// The bytes by which the ranks of one generation meet. Who has them can join, so they travel on control links alone and
/// are shown to nobody.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Bootstrap(pub [u8; BOOTSTRAP_BYTES]);

impl fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bootstrap")
    }
}

// By hand: serde derives arrays of at most 32. A tuple has no length on the wire, so no peer can claim another.
impl Serialize for Bootstrap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut tuple = serializer.serialize_tuple(BOOTSTRAP_BYTES)?;
        self.0.iter().try_for_each(|byte| tuple.serialize_element(byte))?;
        tuple.end()
    }
}

impl<'de> Deserialize<'de> for Bootstrap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl<'de> Visitor<'de> for Bytes {
            type Value = Bootstrap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{BOOTSTRAP_BYTES} bytes")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Bootstrap, A::Error> {
                let mut bytes = [0; BOOTSTRAP_BYTES];
                for (at, byte) in bytes.iter_mut().enumerate() {
                    *byte = seq.next_element()?.ok_or_else(|| A::Error::invalid_length(at, &self))?;
                }
                Ok(Bootstrap(bytes))
            }
        }
        deserializer.deserialize_tuple(BOOTSTRAP_BYTES, Bytes)
    }
}
