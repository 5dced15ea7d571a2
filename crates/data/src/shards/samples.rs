//! From the members of an archive to samples: a picture and its class, which have one name up to its first dot.
//!
//! It does not know how a picture is decoded.

use super::archive::{Member, members};
use super::error::ShardsError;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The most of a wrong label that is shown.
const SHOWN: usize = 40;

/// A picture in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub picture: Member,
    /// None if nothing says it.
    pub class: Option<u64>,
}

/// What a sample is to have besides its picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LabelNeed {
    /// A class.
    Class,
    /// Nothing: it is to be predicted.
    Nothing,
}

/// The members of one sample.
#[derive(Default)]
struct Parts {
    picture: Option<Member>,
    class: Option<Member>,
    json: Option<Member>,
}

/// What says of which class a picture is, besides other things.
#[derive(Deserialize)]
struct Described {
    label: Option<Class>,
    class: Option<Class>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Class {
    Number(u64),
    Text(String),
}

/// The samples of an archive, in the order in which it has their first members.
///
/// *Errors*: it is damaged; a sample without a picture, or with two; without a label, if that is needed, or with one that is no class.
pub(super) fn samples(file: &Path, bytes: &[u8], labels: LabelNeed) -> Result<Vec<Sample>, ShardsError> {
    let mut places = BTreeMap::new();
    let mut all: Vec<(String, Parts)> = Vec::new();
    for member in members(file, bytes)? {
        let Some((key, ending)) = split(&member.name) else { continue };
        let ending = ending.to_ascii_lowercase();
        if !matches!(&*ending, "jpg" | "jpeg" | "png" | "webp" | "cls" | "json") {
            continue;
        }
        let key = key.to_owned();
        let place = *places.entry(key.clone()).or_insert(all.len());
        if place == all.len() {
            all.push((key.clone(), Parts::default()));
        }
        let parts = &mut all[place].1;
        let (part, what) = match &*ending {
            "cls" => (&mut parts.class, "classes"),
            "json" => (&mut parts.json, "descriptions"),
            _ => (&mut parts.picture, "pictures"),
        };
        if let Some(first) = part {
            let (file, first, second) = (file.to_owned(), first.name.clone(), member.name);
            return Err(ShardsError::Twice { file, key, what, first, second });
        }
        *part = Some(member);
    }
    let sample = |(key, parts): (String, Parts)| {
        let lacks = |what| ShardsError::Lacks { file: file.to_owned(), key: key.clone(), what };
        let class = match labels {
            LabelNeed::Class => Some(class(file, bytes, &parts)?.ok_or_else(|| lacks("label"))?),
            LabelNeed::Nothing => None,
        };
        Ok(Sample { picture: parts.picture.ok_or_else(|| lacks("picture"))?, class })
    };
    all.into_iter().map(sample).collect()
}

/// The key and the ending of a name: up to the first dot of its last part, and from there. None of a hidden file.
fn split(name: &str) -> Option<(&str, &str)> {
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = last + name[last..].find('.')?;
    (dot > last).then(|| (&name[..dot], &name[dot + 1..]))
}

fn class(file: &Path, bytes: &[u8], parts: &Parts) -> Result<Option<u64>, ShardsError> {
    let content = |member: &Member| &bytes[member.offset..member.offset + member.size];
    let wrong = |member: &Member, text: String| {
        let (file, name) = (file.to_owned(), member.name.clone());
        ShardsError::Label { file, name, text }
    };
    if let Some(member) = &parts.class {
        let text = content(member).trim_ascii();
        return match decimal(text) {
            Some(class) => Ok(Some(class)),
            None => Err(wrong(member, shown(&String::from_utf8_lossy(&text[..text.len().min(4 * SHOWN)])))),
        };
    }
    let Some(member) = &parts.json else { return Ok(None) };
    let described: Described = serde_json::from_slice(content(member))
        .map_err(|error| wrong(member, format!("no class ({error})")))?;
    match described.label.or(described.class) {
        None => Err(wrong(member, "neither \"label\" nor \"class\"".to_owned())),
        Some(Class::Number(class)) => Ok(Some(class)),
        Some(Class::Text(text)) => {
            decimal(text.trim().as_bytes()).map(Some).ok_or_else(|| wrong(member, shown(&text)))
        }
    }
}

fn decimal(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()
}

/// A text in quotes, cut where it is too long for a line.
fn shown(text: &str) -> String {
    let short: String = text.chars().take(SHOWN).collect();
    if short == text { format!("{text:?}") } else { format!("{short:?}...") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_goes_to_the_first_dot_of_the_last_part() {
        assert_eq!(split("a.jpg"), Some(("a", "jpg")));
        assert_eq!(split("x.y/a.seg.png"), Some(("x.y/a", "seg.png")));
        for name in ["a", "x.y/a", ".hidden", "x/.hidden.jpg", ""] {
            assert_eq!(split(name), None, "{name}");
        }
    }

    #[test]
    fn a_class_is_decimal_digits() {
        assert_eq!((decimal(b"0"), decimal(b"0042")), (Some(0), Some(42)));
        for text in ["", "-1", "+1", "1.0", "cat", "99999999999999999999999"] {
            assert_eq!(decimal(text.as_bytes()), None, "{text}");
        }
        assert_eq!(shown(&"x".repeat(41)), format!("\"{}\"...", "x".repeat(40)));
    }
}
