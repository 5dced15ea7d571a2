//! What a crash leaves of a file of lines.

/// Bytes up to the first line that was not written whole: one without its end, or with a hole.
///
/// Where a power cut takes pages that were not synced, in any order, those behind a hole may be there. Nothing behind it was synced, for
/// a sync leaves no hole before what it has synced.
pub(crate) fn whole_lines(bytes: &[u8]) -> usize {
    let sound = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    bytes[..sound].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_whole_up_to_its_end_and_nothing_is_behind_a_hole() {
        for (bytes, whole) in
            [("", 0), ("a", 0), ("a\n", 2), ("a\nb", 2), ("a\nb\n", 4), ("a\nb\0\nc\n", 2), ("\0a\n", 0)]
        {
            assert_eq!(whole_lines(bytes.as_bytes()), whole, "{bytes:?}");
        }
    }
}
