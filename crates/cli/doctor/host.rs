//! What training on the CPU needs: the kernel, the processor, memory that ranks share. A `missing` here means that it
//! does not work.

use super::check::Check;
use crate::fabric::new_arena;
use crate::gpus::this_machine;
use dtrain_collective::{Geometry, Reduce};
use dtrain_engine::cpu::{Cpu, CpuOptions, Isa};
use dtrain_types::{WorldSize, counted};
use rustix::thread::{CpuSet, sched_getaffinity};
use serde_json::json;
use std::fs;

/// memfd, pidfd and the rest are all there from this one on.
const LEAST_KERNEL: (u32, u32) = (5, 10);

pub(super) fn checks() -> Vec<Check> {
    vec![kernel(), processor(), cores(), shared()]
}

fn kernel() -> Check {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    let found = format!("Linux {release}");
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = numbers.next().zip(numbers.next());
    match version.is_some_and(|version| version >= LEAST_KERNEL) {
        true => Check::ok("kernel", found),
        false => Check::warn("kernel", format!("{found}, 5.10 or newer is needed"))
            .hint("an older kernel lacks pidfd: ranks cannot be watched; update the system"),
    }
    .details(json!({"release": release}))
}

/// The instruction sets that kernels may use, and whether they compute: every operation once, as at a rendezvous.
fn processor() -> Check {
    let has =
        |name| Isa::parse(name).ok().filter(|isa| Cpu::new(CpuOptions { isa: *isa, threads: 1 }).is_ok());
    let sets: Vec<&str> =
        ["amx", "avx512", "avx2", "scalar"].into_iter().filter(|name| has(name).is_some()).collect();
    let best = Isa::best().to_string();
    let made = Cpu::new(CpuOptions { isa: Isa::best(), threads: 1 });
    let fingerprint = match &made {
        Ok(cpu) => dtrain_engine::fingerprint::fingerprint(cpu),
        Err(error) => return Check::missing("processor", error.to_string()),
    };
    let digest: String = fingerprint.self_test.0.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let found = format!("{}, {best} in use, self-test {digest}", model_name());
    let check = match best.as_str() {
        "scalar" => Check::warn("processor", found)
            .hint("without AVX2 training is several times slower; the result is the same"),
        _ => Check::ok("processor", found),
    };
    check.details(
        json!({"model": model_name(), "instruction_sets": sets, "in_use": best, "self_test": digest}),
    )
}

fn model_name() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

/// Cores that the machine has, that this process may run on, and that its share of time comes to.
fn cores() -> Check {
    let online =
        fs::read_to_string("/sys/devices/system/cpu/online").ok().and_then(|text| count_listed(text.trim()));
    let allowed: Option<CpuSet> = sched_getaffinity(None).ok();
    let allowed = allowed.map(|set| set.count() as usize);
    let used = this_machine().cores as usize;
    let details = json!({"online": online, "affinity": allowed, "used": used});
    let found = match online {
        Some(online) if online > used => format!("{used} of {online} may be used"),
        _ => counted(used, "core"),
    };
    let check = match (online, allowed) {
        (Some(online), Some(allowed)) if allowed < online => Check::warn("cores", found).hint(format!(
            "this process is bound to {allowed} of them (taskset, a cpuset of the container, Slurm's --cpus-per-task)"
        )),
        (Some(online), _) if used < online => Check::warn("cores", found).hint(
            "a quota of the control group allows no more (a container's --cpus, a limit of Kubernetes)",
        ),
        _ => Check::ok("cores", found),
    };
    check.details(details)
}

/// `0-3,8` are five.
fn count_listed(text: &str) -> Option<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first).map(|between| between + 1)
    };
    text.split(',').map(range).sum()
}

/// The memory in which ranks add up gradients is a real one here, of two ranks.
fn shared() -> Check {
    match new_arena(WorldSize(2), Geometry::bound(1024, 4, Reduce::Exact), None) {
        Ok(_) => Check::ok("arena", "ranks can share memory (memfd)"),
        Err(error) => Check::missing("arena", error).hint("a sandbox that forbids memfd_create does this"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_counted() {
        for (text, count) in [("0", Some(1)), ("0-3", Some(4)), ("0-3,8", Some(5)), ("3-1", None), ("", None)]
        {
            assert_eq!(count_listed(text), count, "{text}");
        }
    }
}
