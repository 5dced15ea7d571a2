//! Which devices `CUDA_VISIBLE_DEVICES` leaves, and in which order: what `cuda:0` means.
//!
//! The one reader of that variable. It asks nobody which GPUs there are.
//!
//! *Source*: CUDA programming guide, environment variables: numbers or names, of which the beginning is enough; the list
//! ends at the first entry that names no device.

use std::ffi::OsStr;

/// A device that a program may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VisibleDevice {
    /// A whole GPU, by its number on this host.
    Gpu(u32),
    /// A GPU by its name, where GPUs do not tell theirs: nobody can say which one it is, or whether it is there.
    Named(String),
    /// A slice of a GPU (MIG), by its name. A GPU may have several.
    Slice(String),
}

/// What a program that is started here may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Visible {
    /// In their order; the first one is `cuda:0`.
    pub devices: Vec<VisibleDevice>,
    /// The entry at which the list ended, because it names no device of this host.
    pub ended_at: Option<String>,
}

impl Visible {
    /// The whole GPUs before the first device that is none, by their numbers on this host.
    #[must_use]
    pub fn gpus(&self) -> Vec<u32> {
        let number = |device: &VisibleDevice| match device {
            VisibleDevice::Gpu(number) => Some(*number),
            VisibleDevice::Named(_) | VisibleDevice::Slice(_) => None,
        };
        self.devices.iter().map_while(number).collect()
    }

    /// The name of the first device that is no whole GPU of a known number.
    #[must_use]
    pub fn first_other(&self) -> Option<&str> {
        self.devices.iter().find_map(|device| match device {
            VisibleDevice::Gpu(_) => None,
            VisibleDevice::Named(name) | VisibleDevice::Slice(name) => Some(name.as_str()),
        })
    }
}

/// Reads the list. `names` are the GPUs of this host in their order (`GPU-...`, where a GPU tells its name).
#[must_use]
pub fn visible(names: &[Option<String>], list: Option<&OsStr>) -> Visible {
    let all = || (0..).zip(names).map(|(number, _)| VisibleDevice::Gpu(number)).collect();
    let Some(list) = list.map(OsStr::to_string_lossy) else {
        return Visible { devices: all(), ended_at: None };
    };
    let mut found = Visible::default();
    for entry in list.split(',').map(str::trim) {
        match device(names, entry).filter(|device| !found.devices.contains(device)) {
            Some(device) => found.devices.push(device),
            None => {
                // An empty list and -1 are how people say none.
                found.ended_at = (!matches!(entry, "" | "-1" | "NoDevFiles")).then(|| entry.to_owned());
                break;
            }
        }
    }
    found
}

fn device(names: &[Option<String>], entry: &str) -> Option<VisibleDevice> {
    // Without a GPU a name names nothing.
    if names.is_empty() {
        return None;
    }
    if let Ok(number) = entry.parse::<u32>() {
        return names.get(number as usize).map(|_| VisibleDevice::Gpu(number));
    }
    if entry.starts_with("MIG-") {
        return Some(VisibleDevice::Slice(entry.to_owned()));
    }
    if !entry.starts_with("GPU-") {
        return None;
    }
    let is_meant = |name: &Option<String>| name.as_ref().is_some_and(|name| name.starts_with(entry));
    let mut alike = (0..).zip(names).filter(|(_, name)| is_meant(name)).map(|(number, _)| number);
    match (alike.next(), alike.next()) {
        (Some(number), None) => Some(VisibleDevice::Gpu(number)),
        // The beginning of several names is none.
        (Some(_), Some(_)) => None,
        (None, _) => names.contains(&None).then(|| VisibleDevice::Named(entry.to_owned())),
    }
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
            (Some("GPU-cc,0"), &[], Some("GPU-cc")),
            (Some("1,1"), &[1], Some("1")),
            (Some("NoDevFiles"), &[], None),
        ] {
            let found = visible(&names, list.map(OsStr::new));
            assert_eq!((found.gpus(), found.ended_at.as_deref()), (gpus.to_vec(), ended_at), "{list:?}");
            assert_eq!((found.devices.len(), found.first_other()), (gpus.len(), None), "{list:?}");
        }
    }

    #[test]
    fn slices_are_devices_of_their_own_and_no_whole_gpus() {
        let names = [Some("GPU-bb33".to_owned())];
        let found = visible(&names, Some(OsStr::new("MIG-a,MIG-b,0,MIG-a,MIG-c")));
        assert_eq!((found.devices.len(), found.ended_at.as_deref()), (3, Some("MIG-a")));
        assert_eq!((found.gpus(), found.first_other()), (vec![], Some("MIG-a")));
        assert_eq!(visible(&names, Some(OsStr::new("0,MIG-b"))).gpus(), [0]);
        let nowhere = visible(&[], Some(OsStr::new("MIG-a")));
        assert_eq!((nowhere.devices.len(), nowhere.ended_at.as_deref()), (0, Some("MIG-a")));
    }

    #[test]
    fn where_gpus_do_not_tell_their_names_a_name_is_believed() {
        let count =
            |there, list: Option<&str>| visible(&vec![None; there], list.map(OsStr::new)).devices.len();
        for (there, list, expected) in [
            (4, None, 4),
            (4, Some("0,2"), 2),
            (4, Some("1,-1,2"), 1),
            (4, Some("0,9,1"), 1),
            (4, Some("GPU-8932f937,GPU-12"), 2),
            (1, Some("MIG-a,MIG-b,MIG-c"), 3),
            (0, Some("0,1"), 0),
            (0, Some("GPU-1"), 0),
        ] {
            assert_eq!(count(there, list), expected, "{there} {list:?}");
        }
    }
}
