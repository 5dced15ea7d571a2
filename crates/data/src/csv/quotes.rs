//! Where fields and rows of a table end: a delimiter or a line break inside quotes belongs to the field.
//!
//! A quote opens at the beginning of a field alone, so that the inches of `5" pipe` are text; two of them inside quotes are one.
//! It does not know what stands in a field.
//!
//! *Source*: RFC 4180.

/// The longest row. A quote that is not closed would take the rest of the file. *Units*: bytes.
pub const LONGEST_ROW: usize = 4 << 20;

/// What separates the columns of a first line.
pub(super) fn guess(line: &str) -> char {
    [',', ';', '\t'].into_iter().find(|c| line.contains(*c)).unwrap_or(' ')
}

/// How a text is cut into rows.
#[derive(Clone, Copy, Debug)]
pub struct RowEnds {
    delimiter: char,
}

/// Where one stands in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quote {
    /// At the beginning of a field.
    Start,
    /// In a field without quotes, or behind them.
    Plain,
    /// Inside quotes.
    Open,
    /// Behind a quote inside quotes: the end of them, or the first of two.
    Closing,
}

impl Quote {
    /// Where one stands after this character.
    pub fn after(self, next: char, delimiter: char) -> Self {
        match (self, next) {
            (Self::Open, '"') => Self::Closing,
            (Self::Open, _) | (Self::Closing | Self::Start, '"') => Self::Open,
            (_, next) if next == delimiter => Self::Start,
            (Self::Start, ' ') => Self::Start,
            _ => Self::Plain,
        }
    }
}

impl RowEnds {
    /// For a table with this delimiter; none: what its first line suggests.
    #[must_use]
    pub fn new(first_line: &str, delimiter: Option<char>) -> Self {
        Self { delimiter: delimiter.unwrap_or_else(|| guess(first_line)) }
    }

    /// What separates columns.
    #[must_use]
    pub fn delimiter(self) -> char {
        self.delimiter
    }

    /// Where a row stands behind one of its lines: [`Quote::Open`] if it goes on.
    pub(super) fn goes_on(self, from: Quote, line: &[u8]) -> Quote {
        // Columns between spaces have no quotes; and who separates them by a letter of another script has none over lines.
        let has_none = self.delimiter == ' ' || !self.delimiter.is_ascii();
        if has_none || (from != Quote::Open && !line.contains(&b'"')) {
            return Quote::Start;
        }
        let line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line);
        line.iter().fold(from, |quote, byte| quote.after(char::from(*byte), self.delimiter))
    }

    /// The end of the last row that is whole, behind its line break; none if there is none. `text` begins with a row.
    #[must_use]
    pub fn last(self, text: &[u8]) -> Option<usize> {
        if !text.contains(&b'"') {
            return text.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1);
        }
        let (mut end, mut whole, mut quote) = (0, None, Quote::Start);
        for line in text.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
            end += line.len();
            quote = self.goes_on(quote, line);
            if quote != Quote::Open {
                (whole, quote) = (Some(end), Quote::Start);
            }
        }
        whole
    }

    /// The rows of a text that begins with one, each with the number of its first line, and whether it is whole: the last one
    /// may end inside quotes.
    pub(super) fn rows(self, text: &[u8], first_line: u64) -> impl Iterator<Item = (u64, &[u8], Quote)> {
        let (mut rest, mut line) = (text, first_line);
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let (number, mut end, mut quote) = (line, 0, Quote::Start);
            while end < rest.len() {
                let length = rest[end..].iter().position(|byte| *byte == b'\n');
                let next = length.map_or(rest.len(), |length| end + length + 1);
                quote = self.goes_on(quote, &rest[end..next]);
                (end, line) = (next, line + 1);
                if quote != Quote::Open {
                    break;
                }
            }
            let (row, behind) = rest.split_at(end);
            rest = behind;
            Some((number, row.strip_suffix(b"\n").unwrap_or(row), quote))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delimiter_is_found_in_the_first_line() {
        assert_eq!([guess("1,2;3"), guess("1;2"), guess("1\t2"), guess("1 2")], [',', ';', '\t', ' ']);
    }

    #[test]
    fn a_line_break_inside_quotes_belongs_to_its_row() {
        let ends = RowEnds::new("a,b", None);
        let text = b"1,\"two\nlines\"\n5\" pipe,2\n\"a \"\"b\"\"\n\",3\n4,\"op\nen";
        let rows: Vec<(u64, &[u8], Quote)> = ends.rows(text, 7).collect();
        let (numbers, last): (Vec<u64>, _) = (rows.iter().map(|row| row.0).collect(), rows.last().unwrap());
        assert_eq!(numbers, [7, 9, 10, 12]);
        assert_eq!(rows[0].1, b"1,\"two\nlines\"");
        assert_eq!(rows[2].1, b"\"a \"\"b\"\"\n\",3");
        assert_eq!((last.1, last.2), (&b"4,\"op\nen"[..], Quote::Open));
        assert_eq!(ends.last(text), Some(text.len() - b"4,\"op\nen".len()));
        assert_eq!([ends.last(b"1,2\n3"), ends.last(b"1,2"), ends.last(b"\"\n")], [Some(4), None, None]);
        // Between spaces there are no quotes.
        assert_eq!(RowEnds::new("a b", None).rows(b"1 \"\n2 3\n", 1).count(), 2);
    }
}
