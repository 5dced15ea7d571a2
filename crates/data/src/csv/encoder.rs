//! From the fields of a row to the features of a sample, by what is known of each column.
//!
//! It does not know how that became known, nor where rows come from.

use super::lines::{ColumnRef, number};
use super::missing::{Nothing, nothing};
use crate::DataError;
use crate::preparation::{ColumnUse, Role, Unseen};
use std::path::Path;

/// One column, ready for many rows.
#[derive(Debug)]
enum Encode {
    /// The value, or what stands for a missing one.
    Number { fill: Option<f32> },
    /// A 1 among zeros.
    Category { words: Vec<String>, missing: bool, unseen: Unseen },
    /// What is predicted, or nothing.
    Skip,
}

/// When a missing number gets its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// At once: it comes to its fill.
    Now,
    /// When all rows are known: until then it is `NaN`.
    Later,
}

/// All columns of a table.
#[derive(Debug)]
pub(crate) struct Encoder {
    columns: Vec<Encode>,
    width: usize,
}

impl Encoder {
    /// For rows of columns that are used so.
    pub fn new<'a>(columns: impl IntoIterator<Item = &'a ColumnUse>, when: Fill) -> Self {
        let encode = |column: &ColumnUse| match &column.role {
            Role::Number { fill, .. } => Encode::Number {
                fill: fill.map(|fill| match when {
                    Fill::Now => fill as f32,
                    Fill::Later => f32::NAN,
                }),
            },
            Role::Category { words, missing, unseen } => {
                Encode::Category { words: words.clone(), missing: missing.is_some(), unseen: *unseen }
            }
            Role::Target | Role::LeftOut(_) => Encode::Skip,
        };
        let columns: Vec<Encode> = columns.into_iter().map(encode).collect();
        let width = columns.iter().map(Encode::width).sum();
        Self { columns, width }
    }

    /// The features of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Adds the features of one column.
    ///
    /// *Errors*: no number, a missing value or a word that is refused.
    pub fn encode(
        &self,
        column: usize,
        field: &str,
        (file, line, at): (&Path, u64, ColumnRef<'_>),
        features: &mut Vec<f32>,
    ) -> Result<(), DataError> {
        match &self.columns[column] {
            Encode::Skip => {}
            Encode::Number { fill } => {
                let value = match number(file, line, at, field) {
                    Ok(value) => value,
                    Err(error) => fill.filter(|_| nothing(field) != Nothing::Word).ok_or(error)?,
                };
                features.push(value);
            }
            Encode::Category { words, missing, unseen } => {
                let first = features.len();
                features.resize(first + words.len(), 0.0);
                match words.binary_search_by(|word| word.as_str().cmp(field)) {
                    Ok(place) => features[first + place] = 1.0,
                    Err(_) if nothing(field) == Nothing::Missing => {
                        if !missing {
                            let (file, column) = (file.to_owned(), at.shown());
                            return Err(DataError::MissingWord { file, line, column });
                        }
                    }
                    Err(_) if *unseen == Unseen::Ignore => {}
                    Err(_) => {
                        let (name, text) = (at.shown(), field.to_owned());
                        return Err(DataError::UnseenWord {
                            file: file.to_owned(),
                            line,
                            column: name,
                            text,
                        });
                    }
                }
            }
        }
        Ok(())
    }
}

impl Encode {
    fn width(&self) -> usize {
        match self {
            Self::Number { .. } => 1,
            Self::Category { words, .. } => words.len(),
            Self::Skip => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_ones_among_zeros_and_missing_values_what_was_asked_for() {
        let columns = |unseen, missing: Option<u64>| {
            [
                ColumnUse { name: None, role: Role::Number { fill: missing.map(|_| 7.0), missing: 0 } },
                ColumnUse { name: None, role: Role::Target },
                ColumnUse {
                    name: None,
                    role: Role::Category { words: vec!["a".into(), "b".into()], missing, unseen },
                },
            ]
        };
        let row = |encoder: &Encoder, fields: [&str; 3]| {
            let mut features = Vec::new();
            for (column, field) in fields.into_iter().enumerate() {
                let at = ColumnRef { column, name: Some("city") };
                encoder.encode(column, field, (Path::new("t"), 3, at), &mut features)?;
            }
            Ok::<_, DataError>(features)
        };
        let free = Encoder::new(&columns(Unseen::Ignore, Some(0)), Fill::Now);
        assert_eq!(free.width(), 3);
        assert_eq!(row(&free, ["1", "x", "b"]).unwrap(), [1.0, 0.0, 1.0]);
        assert_eq!(row(&free, ["NA", "x", "c"]).unwrap(), [7.0, 0.0, 0.0]);
        assert_eq!(row(&free, ["1", "x", ""]).unwrap(), [1.0, 0.0, 0.0]);
        let strict = Encoder::new(&columns(Unseen::Refuse, None), Fill::Now);
        let says = |fields| row(&strict, fields).unwrap_err().to_string();
        assert!(says(["", "x", "a"]).contains("t line 3, column 1 (city)"));
        let missing = says(["1", "x", ""]);
        assert!(missing.contains("city") && missing.ends_with("the word is missing"), "{missing}");
        assert!(says(["1", "x", "c"]).contains("\"c\""));
    }
}
