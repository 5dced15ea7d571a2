//! One field of a table in a text file, as others read it.

/// The field, in quotes where it must be.
#[must_use]
pub fn csv_field(field: &str) -> String {
    match field.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_comma_or_a_quote_is_quoted() {
        assert_eq!([csv_field("a"), csv_field("a,b"), csv_field("a\"b")], ["a", "\"a,b\"", "\"a\"\"b\""]);
    }
}
