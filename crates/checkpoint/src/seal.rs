//! The bytes of a manifest: JSON that people read, closed by a seal over every byte before it.
//!
//! Shards have their digests in the manifest; the manifest has its own in its last line. A torn, truncated or
//! edited manifest is thereby told from a whole one (S12) without a second file. The seal guards against accidents,
//! not against a person who can compute blake3.

use crate::{Digest, Fault, Manifest};
use serde_json::Value;
use std::fmt::Write;

/// The largest manifest that is read: about 200 000 tensors.
pub(crate) const MAX_MANIFEST: u64 = 64 << 20;

const OPEN: &str = ",\n  \"seal\": \"";
const CLOSE: &str = "\"\n}\n";
const SEAL_LEN: usize = OPEN.len() + 64 + CLOSE.len();

/// The text of `manifest`: one field a line, lists one entry a line, the seal last.
pub(crate) fn encode(manifest: &Manifest) -> String {
    let value = serde_json::to_value(manifest).expect("a manifest is plain data");
    let Value::Object(fields) = value else { unreachable!("a struct is a JSON object") };
    let mut text = String::from("{");
    for (i, (key, value)) in fields.iter().enumerate() {
        let comma = if i == 0 { "" } else { "," };
        write!(text, "{comma}\n  \"{key}\": ").expect("a string takes all");
        match value {
            Value::Array(items) if !items.is_empty() => {
                let lines: Vec<_> = items.iter().map(|item| format!("\n    {item}")).collect();
                write!(text, "[{}\n  ]", lines.join(",")).expect("a string takes all");
            }
            other => write!(text, "{other}").expect("a string takes all"),
        }
    }
    let seal = crate::hash(text.as_bytes());
    text.push_str(OPEN);
    text.push_str(&seal.to_string());
    text.push_str(CLOSE);
    text
}

/// Reads a manifest and checks its seal and that it does not contradict itself.
pub(crate) fn decode(bytes: &[u8]) -> Result<Manifest, Fault> {
    let (body, tail) = bytes.split_at_checked(bytes.len().wrapping_sub(SEAL_LEN)).ok_or(Fault::Seal)?;
    let seal = std::str::from_utf8(tail).ok().and_then(|tail| tail.strip_prefix(OPEN)?.strip_suffix(CLOSE));
    let seal: Digest = seal.and_then(|seal| seal.parse().ok()).ok_or(Fault::Seal)?;
    if crate::hash(body) != seal {
        return Err(Fault::Seal);
    }
    let text = [body, b"}"].concat();
    let manifest: Manifest = serde_json::from_slice(&text).map_err(|error| not_a_manifest(&text, &error))?;
    manifest.problems()?;
    Ok(manifest)
}

/// A manifest of another version may have other fields; then the version is what to say.
fn not_a_manifest(text: &[u8], error: &serde_json::Error) -> Fault {
    let version = serde_json::from_slice::<Value>(text).ok().and_then(|value| value.get("version")?.as_u64());
    match version.and_then(|version| u32::try_from(version).ok()) {
        Some(got) if got != crate::MANIFEST_VERSION => crate::ManifestError::Version { got }.into(),
        _ => Fault::NotAManifest(error.to_string()),
    }
}
