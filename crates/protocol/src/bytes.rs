//! Values of our own as bytes without a frame.

use crate::frame::MAX_PAYLOAD;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The bytes of any value of our own, without a frame and without a limit: for files, never for links.
pub(crate) fn to_bytes<T: Serialize>(value: &T) -> Vec<u8> {
    bincode::serde::encode_to_vec(value, bincode::config::legacy()).expect("our own types can be written")
}

/// The value that has exactly these bytes.
pub(crate) fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    // No list can claim more than a file holds: the limit is what a transcript's block may be.
    let config = bincode::config::legacy().with_limit::<{ 16 * MAX_PAYLOAD }>();
    bincode::serde::decode_from_slice(bytes, config)
        .ok()
        .filter(|(_, used)| *used == bytes.len())
        .map(|(v, _)| v)
}
