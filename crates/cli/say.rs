//! Lines on standard output, for results that are printed as they come. A reader that went away is no reason for a panic.

/// As `println!`, but for a reader that went away: nobody hears of that.
macro_rules! say {
    ($($argument:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stdout(), format_args!("{}\n", format_args!($($argument)*)));
    }};
}
