//! The header of a NumPy array: a magic number, a version, and a Python dictionary with three keys.

use crate::DataError;
use std::path::Path;

const MAGIC: &[u8] = b"\x93NUMPY";

/// The element types that are read; all little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    F4,
    F8,
    U1,
    U2,
    U4,
    I4,
    I8,
}

/// What the header says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub element: Element,
    pub shape: Vec<usize>,
    /// Where the elements begin.
    pub offset: usize,
}

impl Element {
    fn of(descr: &str) -> Option<Self> {
        Some(match descr {
            "<f4" => Self::F4,
            "<f8" => Self::F8,
            "|u1" | "<u1" => Self::U1,
            "<u2" => Self::U2,
            "<u4" => Self::U4,
            "<i4" => Self::I4,
            "<i8" => Self::I8,
            _ => return None,
        })
    }

    pub fn size(self) -> usize {
        match self {
            Self::U1 => 1,
            Self::U2 => 2,
            Self::F4 | Self::U4 | Self::I4 => 4,
            Self::F8 | Self::I8 => 8,
        }
    }

    pub fn is_whole(self) -> bool {
        matches!(self, Self::U1 | Self::U2 | Self::U4 | Self::I4 | Self::I8)
    }

    /// One element from its bytes.
    pub fn value(self, bytes: &[u8]) -> f64 {
        let four = || <[u8; 4]>::try_from(bytes).expect("four bytes");
        let eight = || <[u8; 8]>::try_from(bytes).expect("eight bytes");
        match self {
            Self::U1 => f64::from(bytes[0]),
            Self::U2 => f64::from(u16::from_le_bytes(<[u8; 2]>::try_from(bytes).expect("two bytes"))),
            Self::F4 => f64::from(f32::from_le_bytes(four())),
            Self::U4 => f64::from(u32::from_le_bytes(four())),
            Self::I4 => f64::from(i32::from_le_bytes(four())),
            Self::F8 => f64::from_le_bytes(eight()),
            Self::I8 => i64::from_le_bytes(eight()) as f64,
        }
    }
}

impl Header {
    pub fn parse(file: &Path, bytes: &[u8]) -> Result<Self, DataError> {
        if bytes.is_empty() {
            return Err(DataError::Empty { file: file.to_owned() });
        }
        if !bytes.starts_with(MAGIC) {
            let got = bytes
                .iter()
                .take(MAGIC.len())
                .map(|byte| format!("{byte:02x}"))
                .collect::<Vec<_>>()
                .join(" ");
            return Err(DataError::WrongMagic {
                file: file.to_owned(),
                expected: "93 4e 55 4d 50 59 (NumPy)",
                got,
            });
        }
        let problem = |problem: String| DataError::Header { file: file.to_owned(), problem };
        let (start, length) = match bytes[MAGIC.len()..] {
            [1, _, a, b, ..] => (10, usize::from(u16::from_le_bytes([a, b]))),
            [2 | 3, _, a, b, c, d, ..] => (12, u32::from_le_bytes([a, b, c, d]) as usize),
            [version, ..] if !(1..=3).contains(&version) => {
                return Err(problem(format!("version {version}, expected 1, 2 or 3")));
            }
            _ => return Err(problem(format!("it ends after {} bytes", bytes.len()))),
        };
        let offset = start + length;
        let dictionary = bytes.get(start..offset).ok_or_else(|| {
            problem(format!("it has {length} bytes, the file has {} after its start", bytes.len() - start))
        })?;
        let dictionary =
            std::str::from_utf8(dictionary).map_err(|_| problem("its dictionary is no text".to_owned()))?;
        let value = |key: &str| value_of(dictionary, key).ok_or_else(|| problem(format!("it has no {key}")));
        let descr = value("descr")?.trim_start();
        let descr = quoted(descr).unwrap_or(descr);
        let element = Element::of(descr).ok_or_else(|| DataError::ElementType {
            file: file.to_owned(),
            expected: "float32, float64, uint8, uint16, uint32, int32, int64 (little-endian)",
            got: descr.to_owned(),
        })?;
        if !value("fortran_order")?.trim_start().starts_with("False") {
            return Err(problem("the array is in Fortran order, expected C order".to_owned()));
        }
        let shape = dimensions(value("shape")?).ok_or_else(|| problem("its shape is no tuple".to_owned()))?;
        if shape.is_empty() {
            return Err(problem("the array has no dimension, expected at least one".to_owned()));
        }
        Ok(Self { element, shape, offset })
    }
}

/// What follows `'key':` in a dictionary.
fn value_of<'a>(dictionary: &'a str, key: &str) -> Option<&'a str> {
    let after =
        ['\'', '"'].iter().find_map(|quote| dictionary.split_once(&format!("{quote}{key}{quote}")))?.1;
    after.trim_start().strip_prefix(':')
}

fn quoted(text: &str) -> Option<&str> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    text[1..].split_once(quote).map(|(inside, _)| inside)
}

/// `(3, 4)`, `(3,)` or `()`.
fn dimensions(text: &str) -> Option<Vec<usize>> {
    let (inside, _) = text.trim_start().strip_prefix('(')?.split_once(')')?;
    let parts = inside.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| part.trim_end_matches('L').parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(version: u8, dictionary: &str) -> Result<Header, DataError> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([version, 0]);
        match version {
            1 => bytes.extend((dictionary.len() as u16).to_le_bytes()),
            _ => bytes.extend((dictionary.len() as u32).to_le_bytes()),
        }
        bytes.extend(dictionary.as_bytes());
        Header::parse(Path::new("a.npy"), &bytes)
    }

    #[test]
    fn versions_one_and_two_are_read() {
        let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }   \n";
        let header = Header { element: Element::F4, shape: vec![3, 4], offset: 10 + text.len() };
        assert_eq!(parse(1, text).unwrap(), header);
        assert_eq!(parse(2, text).unwrap(), Header { offset: 12 + text.len(), ..header });
        let text = "{\"shape\": (7,), \"descr\": \"|u1\", \"fortran_order\": False}";
        assert_eq!(parse(1, text).unwrap().shape, [7]);
    }

    #[test]
    fn a_header_that_is_not_understood_says_what_is_wrong() {
        let wrong = [
            ("{'descr': '>f4', 'fortran_order': False, 'shape': (3,)}", ">f4"),
            ("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,)}", "[('a'"),
            ("{'descr': '<f4', 'fortran_order': True, 'shape': (3,)}", "Fortran"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': ()}", "no dimension"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (x,)}", "no tuple"),
            ("{'descr': '<f4', 'shape': (3,)}", "no fortran_order"),
        ];
        for (text, words) in wrong {
            let error = parse(1, text).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
            assert!(!error.hint().is_empty());
        }
        assert!(parse(9, "{}").unwrap_err().to_string().contains("version 9"));
    }
}
