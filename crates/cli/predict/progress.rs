//! How far a prediction is, on a terminal.

use crate::report::Voice;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar over so many units of work, which are bytes, samples or tokens; nothing off a terminal.
#[must_use]
pub fn progress(voice: Voice, total: Option<u64>, unit: Unit) -> ProgressBar {
    if voice != Voice::Terminal {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr_with_hz(10));
    let shape = match (unit, total) {
        (Unit::Bytes, Some(_)) => "  {bar:28.cyan/dim} {bytes}/{total_bytes}  {bytes_per_sec}  eta {eta}",
        (Unit::Tokens, Some(_)) => "  {bar:28.cyan/dim} {pos}/{len} tokens  {per_sec}  eta {eta}",
        (Unit::Samples, Some(_)) => "  {bar:28.cyan/dim} {pos}/{len} samples  {per_sec}  eta {eta}",
        (Unit::Bytes, None) => "  {bytes}  {bytes_per_sec}",
        (Unit::Tokens, None) => "  {pos} tokens  {per_sec}",
        (Unit::Samples, None) => "  {pos} samples  {per_sec}",
    };
    bar.with_style(ProgressStyle::with_template(shape).expect("the template is well formed"))
}

/// What a bar counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes of the input.
    Bytes,
    /// Samples.
    Samples,
    /// Tokens that are written.
    Tokens,
}
