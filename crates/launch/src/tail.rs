//! The output of one rank cut into lines, and what is kept of it for a report: the last lines, and when a Python
//! traceback began.

use std::collections::VecDeque;
use std::time::Instant;

/// Lines that a report shows.
const LAST_LINES: usize = 20;
/// A longer line is cut in the report.
const LONGEST_SHOWN: usize = 400;
/// A longer piece without an end of line counts as a line.
const LONGEST_LINE: usize = 64 * 1024;
/// How Python begins to say why it ends.
const TRACEBACK: &str = "Traceback (most recent call last)";

/// What programs say when a peer is gone: gloo, TCPStore, NCCL and its watchdog, MPI, sockets of any kind.
const LOST_PEER: [&str; 8] = [
    "closed by peer",
    "reset by peer",
    "Broken pipe",
    "Connection refused",
    "likely closed",
    "remote process exited",
    "ncclRemoteError",
    "watchdog thread terminated",
];

/// Cuts bytes into lines. A carriage return ends a line too: so progress bars are seen while they move.
#[derive(Debug, Default)]
pub struct Splitter {
    partial: Vec<u8>,
    after_return: bool,
}

impl Splitter {
    /// Takes bytes; `line` gets each line that is complete, without its end.
    pub fn feed(&mut self, bytes: &[u8], mut line: impl FnMut(&[u8])) {
        for &byte in bytes {
            let second_half = std::mem::replace(&mut self.after_return, byte == b'\r') && byte == b'\n';
            match byte {
                b'\n' if second_half => {}
                b'\n' => self.end(&mut line),
                b'\r' if self.partial.is_empty() => {}
                b'\r' => self.end(&mut line),
                _ => {
                    self.partial.push(byte);
                    if self.partial.len() == LONGEST_LINE {
                        self.end(&mut line);
                    }
                }
            }
        }
    }

    /// The last line, if nothing ended it.
    pub fn finish(&mut self, mut line: impl FnMut(&[u8])) {
        if !self.partial.is_empty() {
            self.end(&mut line);
        }
    }

    fn end(&mut self, line: &mut impl FnMut(&[u8])) {
        line(&self.partial);
        self.partial.clear();
    }
}

/// What the last lines of a rank say about its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastWords {
    /// When the last Python traceback began.
    pub traceback: Option<Instant>,
    /// Whether it says that a peer is gone.
    pub lost_peer: bool,
}

/// What a rank said last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    lines: VecDeque<String>,
    traceback: Option<Instant>,
}

impl Tail {
    /// Takes a line of either stream, in the order in which they come.
    pub fn add(&mut self, line: &[u8], now: Instant) {
        let text = String::from_utf8_lossy(&line[..line.len().min(LONGEST_SHOWN)]).into_owned();
        if text.contains(TRACEBACK) {
            self.traceback = Some(now);
        }
        if self.lines.len() == LAST_LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(text);
    }

    /// What the last lines say.
    pub fn last_words(&self) -> LastWords {
        let names_lost_peer = |line: &String| LOST_PEER.iter().any(|words| line.contains(words));
        // What was said before the last traceback was about something else.
        let last = self.lines.iter().rposition(|line| line.contains(TRACEBACK)).unwrap_or(0);
        LastWords { traceback: self.traceback, lost_peer: self.lines.range(last..).any(names_lost_peer) }
    }

    /// The last lines, oldest first.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(pieces: &[&str]) -> Vec<String> {
        let mut splitter = Splitter::default();
        let mut lines = Vec::new();
        let mut keep = |line: &[u8]| lines.push(String::from_utf8(line.to_vec()).unwrap());
        pieces.iter().for_each(|piece| splitter.feed(piece.as_bytes(), &mut keep));
        splitter.finish(&mut keep);
        lines
    }

    #[test]
    fn lines_end_with_a_feed_a_return_or_both_wherever_the_reads_were_cut() {
        for (pieces, lines) in [
            (&["a\nb\n"][..], &["a", "b"][..]),
            (&["a", "b\nc"], &["ab", "c"]),
            (&["a\r\nb\r", "\nc\n"], &["a", "b", "c"]),
            (&["\r 10%", "\r 20%", "\n"], &[" 10%", " 20%"]),
            (&["a\n\nb\n"], &["a", "", "b"]),
            (&[""], &[]),
        ] {
            assert_eq!(split(pieces), lines, "{pieces:?}");
        }
        assert_eq!(split(&["x".repeat(LONGEST_LINE + 1).as_str()]).len(), 2, "memory has a bound");
    }

    #[test]
    fn the_last_lines_stay_and_a_traceback_is_timed() {
        let mut tail = Tail::default();
        let (first, second) = (Instant::now(), Instant::now() + std::time::Duration::from_secs(1));
        (0..30).for_each(|i| tail.add(format!("line {i}").as_bytes(), first));
        assert_eq!(tail.last_words(), LastWords::default());
        tail.add(b"[rank0]: Traceback (most recent call last):", second);
        tail.add(b"ValueError: no", second);
        let lines: Vec<&str> = tail.lines().collect();
        assert_eq!((lines.len(), lines[0], lines[19]), (20, "line 12", "ValueError: no"));
        assert_eq!(tail.last_words(), LastWords { traceback: Some(second), lost_peer: false });
        tail.add(b"RuntimeError: pair.cc:534 Connection closed by peer [127.0.0.1]:9", second);
        assert!(tail.last_words().lost_peer);
        tail.add(b"Traceback (most recent call last):", second);
        tail.add(b"ValueError: another thing", second);
        assert!(!tail.last_words().lost_peer, "that was before");
    }
}
