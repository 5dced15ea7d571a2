//! Shares of what takes long, for those who come back often: a variable like `2/3` asks for the second third.

/// Which share the variable asks for, counted from 1, and of how many; all of it where it is not set. *Panics* if it is no share.
pub fn asked(variable: &str) -> (usize, usize) {
    let Ok(asked) = std::env::var(variable) else { return (1, 1) };
    let share = asked.split_once('/').and_then(|(which, of)| Some((which.parse().ok()?, of.parse().ok()?)));
    let share = share.filter(|&(which, of)| 1 <= which && which <= of);
    share.unwrap_or_else(|| panic!("{variable} is {asked:?}, not like 2/3"))
}
