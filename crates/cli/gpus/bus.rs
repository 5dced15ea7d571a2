//! NVIDIA's GPUs on the bus, driver or not: the difference between "install a driver" and "there is nothing to drive".

use std::fs;
use std::path::Path;

const DEVICES: &str = "/sys/bus/pci/devices";
const NVIDIA: &str = "0x10de";
/// The first two digits of a display adapter's class, with or without an output.
const DISPLAY: &str = "0x03";

/// The addresses of this host's NVIDIA GPUs, in order.
#[must_use]
pub fn on_the_bus() -> Vec<String> {
    below(Path::new(DEVICES))
}

fn below(devices: &Path) -> Vec<String> {
    let entries = fs::read_dir(devices).into_iter().flatten().flatten();
    let is_gpu = |path: &Path| {
        let field = |name: &str| fs::read_to_string(path.join(name)).unwrap_or_default();
        field("vendor").trim() == NVIDIA && field("class").starts_with(DISPLAY)
    };
    let gpus = entries.map(|entry| entry.path()).filter(|path| is_gpu(path));
    let mut addresses: Vec<String> =
        gpus.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect();
    addresses.sort();
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_told_from_its_sound_and_from_other_makers() {
        let bus = tempfile::tempdir().unwrap();
        for (address, vendor, class) in [
            ("0000:41:00.0", NVIDIA, "0x030200"),
            ("0000:01:00.0", NVIDIA, "0x030000"),
            ("0000:01:00.1", NVIDIA, "0x040300"), // its sound
            ("0000:00:02.0", "0x8086", "0x030000"),
        ] {
            let device = bus.path().join(address);
            fs::create_dir(&device).unwrap();
            fs::write(device.join("vendor"), format!("{vendor}\n")).unwrap();
            fs::write(device.join("class"), format!("{class}\n")).unwrap();
        }
        assert_eq!(below(bus.path()), ["0000:01:00.0", "0000:41:00.0"]);
        assert!(below(&bus.path().join("nowhere")).is_empty());
    }
}
