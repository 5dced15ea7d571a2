//! Which GPUs `CUDA_VISIBLE_DEVICES` leaves, and in which order: what `cuda:0` means.
//!
//! *Source*: CUDA programming guide, environment variables: numbers or names, of which the beginning is enough; the list
//! ends at the first entry that names no GPU.

use std::ffi::OsStr;

/// What a program that is started here may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Visible {
    /// The GPUs by their numbers on this host; the first one is `cuda:0`.
    pub gpus: Vec<u32>,
    /// The entry at which the list ended, because it names no GPU.
    pub ended_at: Option<String>,
}

/// Reads the list. `names` are the GPUs of this host in their order (`GPU-...`, where a GPU tells its name).
#[must_use]
pub fn visible(names: &[Option<String>], list: Option<&OsStr>) -> Visible {
    let Some(list) = list.map(OsStr::to_string_lossy) else {
        return Visible { gpus: (0..names.len() as u32).collect(), ended_at: None };
    };
    let mut found = Visible::default();
    for entry in list.split(',').map(str::trim) {
        match named(names, entry).filter(|gpu| !found.gpus.contains(gpu)) {
            Some(gpu) => found.gpus.push(gpu),
            None => {
                // An empty list and -1 are how people say none.
                found.ended_at = (!matches!(entry, "" | "-1" | "NoDevFiles")).then(|| entry.to_owned());
                break;
            }
        }
    }
    found
}

fn named(names: &[Option<String>], entry: &str) -> Option<u32> {
    let place = match entry.parse::<usize>() {
        Ok(index) => (index < names.len()).then_some(index),
        Err(_) if entry.starts_with("GPU-") => {
            let mut alike = (0..names.len())
                .filter(|gpu| names[*gpu].as_ref().is_some_and(|name| name.starts_with(entry)));
            // The beginning of several names is none.
            alike.next().filter(|_| alike.next().is_none())
        }
        Err(_) => None,
    };
    place.and_then(|place| u32::try_from(place).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_beginnings_of_names_are_read_until_one_names_nothing() {
        let names = ["GPU-aa11", "GPU-aa22", "GPU-bb33"].map(|name| Some(name.to_owned()));
        for (list, gpus, ended_at) in [
            (None, &[0, 1, 2][..], None),
            (Some("2,0"), &[2, 0], None),
            (Some(" 1 , GPU-bb"), &[1, 2], None),
            (Some(""), &[], None),
            (Some("-1"), &[], None),
            (Some("0,-1,1"), &[0], None),
            (Some("0,7,1"), &[0], Some("7")),
            (Some("GPU-aa"), &[], Some("GPU-aa")),
            (Some("1,1"), &[1], Some("1")),
            (Some("MIG-bb33,0"), &[], Some("MIG-bb33")),
        ] {
            let ended_at = ended_at.map(str::to_owned);
            assert_eq!(
                visible(&names, list.map(OsStr::new)),
                Visible { gpus: gpus.to_vec(), ended_at },
                "{list:?}"
            );
        }
    }
}
