//! AMD's GPUs, as the kernel's driver tells of them in files: no library is asked.
//!
//! dtrain's own kernels are NVIDIA's: these GPUs are for programs that it starts, and for PyTorch programs. It does not know
//! whether ROCm is there.
//!
//! *Source*: `drivers/gpu/drm/amd/amdkfd/kfd_topology.c` of Linux for the files; the ROCm documentation, "GPU isolation techniques",
//! for the variables.

use dtrain_locate::{Visible, visible};
use dtrain_types::{Bytes, counted};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;

/// A folder a node: processors and GPUs.
const NODES: &str = "sys/class/kfd/kfd/topology/nodes";
/// Devices that draw, among which are those of GPUs.
const RENDERERS: &str = "sys/class/drm";
/// By which programs reach a GPU.
const DRIVER: &str = "dev/kfd";
/// Kinds of memory banks that are a GPU's own: the part that the host may map, and the part that it may not.
const LOCAL: [u64; 2] = [1, 2];
/// Reduces the GPUs for everything of ROCm.
const ROCR: &str = "ROCR_VISIBLE_DEVICES";
/// Reduces what that leaves, for programs of HIP such as PyTorch; the second is the alias of the first where that is not set.
const HIP: [&str; 2] = ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"];

/// A GPU of AMD's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AmdGpu {
    /// By what it is sold, where the driver knows that.
    pub name: Option<String>,
    /// What its kernels are compiled for: `gfx942`.
    pub gfx: String,
    /// Its own memory, where the driver tells.
    pub memory: Option<Bytes>,
    /// By what the variables may name it.
    pub uuid: Option<String>,
}

/// A variable that leaves some of the GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Narrowing {
    /// Its name.
    pub variable: &'static str,
    /// What it says.
    pub list: String,
    /// The entry at which its list ended, because it names no GPU.
    pub ended_at: Option<String>,
}

/// AMD's GPUs of a host, and which of them a program of HIP sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AmdGpus {
    /// All that this process may know of, in the order of the driver.
    pub all: Vec<AmdGpu>,
    /// Places in `all`, in the order in which programs number them.
    pub visible: Vec<usize>,
    /// What leaves these alone.
    pub narrowings: Vec<Narrowing>,
    /// Whether there is what programs reach them by.
    pub has_driver: bool,
}

impl AmdGpus {
    /// Those of this host.
    #[must_use]
    pub fn here() -> Self {
        Self::below(Path::new("/"), |name| std::env::var_os(name))
    }

    fn below(root: &Path, variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let nodes = fs::read_dir(root.join(NODES)).into_iter().flatten().flatten();
        // The driver numbers GPUs in the order of nodes, not of their names.
        let nodes: BTreeMap<u32, _> =
            nodes.filter_map(|node| Some((node.file_name().to_str()?.parse().ok()?, node.path()))).collect();
        let all: Vec<AmdGpu> = nodes.values().filter_map(|node| read(root, node)).collect();
        let mut found = Self { visible: (0..all.len()).collect(), all, ..Self::default() };
        found.has_driver = root.join(DRIVER).exists();
        let set = |names: &[&'static str]| names.iter().find_map(|name| Some((*name, variable(name)?)));
        [set(&[ROCR]), set(&HIP)].into_iter().flatten().for_each(|(name, list)| found.narrow(name, &list));
        found
    }

    /// Leaves what a variable names of what is left so far.
    fn narrow(&mut self, variable: &'static str, list: &OsStr) {
        let names: Vec<Option<String>> = self.left().map(|gpu| gpu.uuid.clone()).collect();
        let list = list.to_string_lossy().into_owned();
        let Visible { devices, ended_at } = visible(&names, Some(OsStr::new(&spelled(&list))));
        let left = Visible { devices, ended_at: None };
        let ended_at = left.first_other().map(str::to_owned).or(ended_at);
        self.visible = left.gpus().into_iter().map(|place| self.visible[place as usize]).collect();
        self.narrowings.push(Narrowing { variable, list, ended_at });
    }

    /// The GPUs that a program sees, in its order.
    pub fn left(&self) -> impl Iterator<Item = &AmdGpu> {
        self.visible.iter().map(|place| &self.all[*place])
    }

    /// How many a program sees.
    #[must_use]
    pub fn count(&self) -> u32 {
        u32::try_from(self.visible.len()).unwrap_or(u32::MAX)
    }

    /// `2 AMD GPUs are here`, of those that a program sees.
    #[must_use]
    pub fn are_here(&self) -> String {
        match self.count() {
            1 => "one AMD GPU is here".to_owned(),
            some => format!("{} are here", counted(some, "AMD GPU")),
        }
    }

    /// What leaves no other GPUs than these: `HIP_VISIBLE_DEVICES=1`.
    #[must_use]
    pub fn narrowed(&self) -> Option<String> {
        let words: Vec<String> =
            self.narrowings.iter().map(|by| format!("{}={}", by.variable, by.list)).collect();
        (!words.is_empty()).then(|| words.join(" "))
    }
}

/// A list of numbers and names, with names in the letters in which they are told here.
fn spelled(list: &str) -> String {
    let entry = |entry: &str| match entry.trim().split_at_checked(4) {
        Some((start, rest)) if start.eq_ignore_ascii_case("GPU-") => {
            format!("GPU-{}", rest.to_ascii_lowercase())
        }
        _ => entry.to_owned(),
    };
    list.split(',').map(entry).collect::<Vec<_>>().join(",")
}

/// The GPU of a node. Nothing where it is a processor, or a GPU that is somebody else's: a container may not read of that.
fn read(root: &Path, node: &Path) -> Option<AmdGpu> {
    let about = properties(&node.join("properties"));
    let number = |name: &str| about.get(name).copied().unwrap_or(0);
    if number("simd_count") == 0 {
        return None;
    }
    let banks = fs::read_dir(node.join("mem_banks")).into_iter().flatten().flatten();
    let banks = banks.map(|bank| properties(&bank.path().join("properties")));
    let local = banks.filter(|bank| bank.get("heap_type").is_some_and(|kind| LOCAL.contains(kind)));
    let memory: u64 = local.filter_map(|bank| bank.get("size_in_bytes").copied()).sum();
    let device = root.join(RENDERERS).join(format!("renderD{}", number("drm_render_minor"))).join("device");
    let name = fs::read_to_string(device.join("product_name")).unwrap_or_default().trim().to_owned();
    let version = number("gfx_target_version");
    Some(AmdGpu {
        name: (!name.is_empty()).then_some(name),
        // 90402 is gfx942 and 90010 gfx90a: the last two are one hexadecimal digit each.
        gfx: format!("gfx{}{:x}{:x}", version / 10_000, version / 100 % 100, version % 100),
        memory: (memory > 0).then_some(Bytes(memory)),
        uuid: Some(number("unique_id")).filter(|id| *id != 0).map(|id| format!("GPU-{id:016x}")),
    })
}

/// Lines of a name and a number.
fn properties(file: &Path) -> BTreeMap<String, u64> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let pair = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// So many GPUs that are alike, as a program sees them.
    pub fn healthy(count: usize) -> AmdGpus {
        let gpu = AmdGpu { name: None, gfx: "gfx942".into(), memory: None, uuid: None };
        AmdGpus { all: vec![gpu; count], visible: (0..count).collect(), ..AmdGpus::default() }
    }

    /// A processor, and GPUs: minor number, version, unique id.
    fn host(gpus: &[(u32, u64, u64)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |path: String, text: String| {
            let file = root.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        write(format!("{NODES}/0/properties"), "cpu_cores_count 64\nsimd_count 0\nvendor_id 0\n".into());
        write(format!("{NODES}/0/mem_banks/0/properties"), "heap_type 0\nsize_in_bytes 99\n".into());
        for (place, (minor, version, id)) in gpus.iter().enumerate() {
            let node = place + 1;
            write(
                format!("{NODES}/{node}/properties"),
                format!(
                    "cpu_cores_count 0\nsimd_count 1216\nvendor_id 4098\ndrm_render_minor {minor}\n\
                     gfx_target_version {version}\nunique_id {id}\n"
                ),
            );
            for (bank, kind, size) in [(0, 1, 3 << 30), (1, 2, 1_u64 << 30), (2, 4, 7)] {
                write(
                    format!("{NODES}/{node}/mem_banks/{bank}/properties"),
                    format!("heap_type {kind}\nsize_in_bytes {size}\nflags 0\n"),
                );
            }
        }
        write(format!("{RENDERERS}/renderD128/device/product_name"), "AMD Instinct MI300X OAM\n".to_owned());
        root
    }

    fn seen(root: &Path, variables: &[(&str, &str)]) -> AmdGpus {
        let variable =
            |name: &str| variables.iter().find(|(set, _)| *set == name).map(|(_, value)| value.into());
        AmdGpus::below(root, variable)
    }

    #[test]
    fn a_gpu_tells_its_name_its_generation_its_memory_and_its_id_and_a_processor_is_none() {
        let root = host(&[(128, 90_402, 0xabc), (129, 90_010, 0), (130, 110_000, 1)]);
        let found = seen(root.path(), &[]);
        assert_eq!(
            found.all[0],
            AmdGpu {
                name: Some("AMD Instinct MI300X OAM".into()),
                gfx: "gfx942".into(),
                memory: Some(Bytes(4 << 30)),
                uuid: Some("GPU-0000000000000abc".into()),
            }
        );
        assert_eq!(
            (found.all[1].gfx.as_str(), &found.all[1].name, &found.all[1].uuid),
            ("gfx90a", &None, &None)
        );
        assert_eq!((found.all[2].gfx.as_str(), found.count(), found.has_driver), ("gfx1100", 3, false));
        assert_eq!(seen(&root.path().join("nowhere"), &[]), AmdGpus::default());
    }

    #[test]
    fn nodes_are_numbered_as_numbers_and_one_that_may_not_be_read_is_not_ours() {
        let ids: Vec<(u32, u64, u64)> = (1..=11).map(|id| (0, 90_402, id)).collect();
        let root = host(&ids);
        fs::remove_file(root.path().join(NODES).join("3/properties")).unwrap();
        let uuids: Vec<Option<String>> = seen(root.path(), &[]).all.into_iter().map(|gpu| gpu.uuid).collect();
        let expected = (1..=11).filter(|id| *id != 3).map(|id| Some(format!("GPU-{id:016x}")));
        assert_eq!(uuids, expected.collect::<Vec<_>>());
    }

    #[test]
    fn what_rocr_leaves_is_numbered_anew_for_hip_and_cuda_is_the_alias() {
        let root = host(&[(128, 90_402, 0xa1), (129, 90_402, 0xb2), (130, 90_402, 0xc3)]);
        let rocr = "ROCR_VISIBLE_DEVICES";
        let hip = "HIP_VISIBLE_DEVICES";
        let cuda = "CUDA_VISIBLE_DEVICES";
        for (variables, expected) in [
            (&[][..], &[0, 1, 2][..]),
            (&[(rocr, "2,0")], &[2, 0]),
            (&[(rocr, "GPU-00000000000000B2")], &[1]),
            (&[(rocr, "")], &[]),
            (&[(rocr, "2,1"), (hip, "1")], &[1]),
            (&[(rocr, "2,1"), (cuda, "0")], &[2]),
            (&[(hip, "1,2"), (cuda, "0")], &[1, 2]),
            (&[(hip, "-1")], &[]),
            (&[(rocr, "0"), (hip, "1")], &[]),
            (&[(cuda, "0,7,1")], &[0]),
        ] {
            assert_eq!(seen(root.path(), variables).visible, expected, "{variables:?}");
        }
        let none = seen(root.path(), &[(rocr, "0"), (hip, "1")]);
        assert_eq!(none.narrowed().as_deref(), Some("ROCR_VISIBLE_DEVICES=0 HIP_VISIBLE_DEVICES=1"));
        assert_eq!(none.narrowings[1].ended_at.as_deref(), Some("1"));
    }
}
