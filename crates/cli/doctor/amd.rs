//! AMD's GPUs: which there are, which of them programs see, and what they are for.

use super::check::Check;
use crate::gpus::{AmdGpu, AmdGpus};
use crate::report::bytes;
use dtrain_types::counted;
use serde_json::json;

/// What dtrain does with them.
const FOR: &str = "for PyTorch programs, with their state in the host's memory, and for `dtrain run`; dtrain's own kernels are NVIDIA's";

/// A line for all of them and one each; none where there are none.
pub(super) fn checks() -> Vec<Check> {
    let amd = AmdGpus::here();
    if amd.all.is_empty() {
        return Vec::new();
    }
    let each = amd.all.iter().enumerate().map(|(place, gpu)| one(&amd, place, gpu));
    std::iter::once(list(&amd)).chain(each).collect()
}

fn list(amd: &AmdGpus) -> Check {
    let mut found = counted(amd.all.len(), "AMD GPU");
    if let Some(by) = amd.narrowed() {
        found += &format!(", {by} leaves {}", amd.count());
    }
    let end = amd.narrowings.iter().find_map(|by| Some((by.variable, by.ended_at.as_ref()?)));
    let check = match (amd.count(), end) {
        (_, Some((variable, entry))) => Check::warn("AMD GPUs", found)
            .hint(format!("{entry:?} of {variable} names no GPU that is left, and the list ends there")),
        (0, None) => {
            Check::warn("AMD GPUs", found).hint("unset it, or name the GPUs: ROCR_VISIBLE_DEVICES=0,1")
        }
        _ if !amd.has_driver => Check::warn("AMD GPUs", found).hint(
            "there is no /dev/kfd here, by which programs reach them: a container is started with `--device=/dev/kfd --device=/dev/dri`",
        ),
        _ => Check::ok("AMD GPUs", format!("{found}: {FOR}")),
    };
    let visible: Vec<_> = amd.visible.iter().collect();
    check.details(json!({
        "count": amd.all.len(), "visible": visible, "narrowed_by": amd.narrowings, "has_driver": amd.has_driver,
    }))
}

fn one(amd: &AmdGpus, place: usize, gpu: &AmdGpu) -> Check {
    let name = gpu.name.as_deref().unwrap_or("of unknown model");
    let mut found = vec![format!("{place}: {name}"), gpu.gfx.clone()];
    found.extend(gpu.memory.map(|memory| bytes(memory.0)));
    found.push(match amd.visible.iter().position(|visible| *visible == place) {
        Some(number) => format!("cuda:{number} to programs"),
        None => "hidden from programs".to_owned(),
    });
    Check::ok("AMD GPU", found.join(", ")).details(json!(gpu))
}
