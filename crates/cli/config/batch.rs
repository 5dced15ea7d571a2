//! Sizes that follow from each other: global batch, micro-batch, ranks, threads, and the length of the run.
//!
//! It does not know the data set.

use super::choice::DataKind;
use super::devices::Devices;
use super::error::{ConfigError, Problem};
use super::on_gpus::{ON_GPUS, OnGpus, PassesBy};
use super::resolve::Resolved;
use super::value::{Length, Value};
use dtrain_types::{counted, cut_evenly};

/// What the configuration needs to know about this machine.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Cores that this process may use.
    pub cores: u32,
    /// Counts the GPUs that `auto` or `all` comes to, 0 where ranks train on the CPU. It is asked only where that matters: it
    /// may take seconds, and `auto` a minute, once.
    pub gpus: fn(&Devices, PassesBy) -> u32,
}

/// How a step is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Samples in one optimizer step.
    pub global: u32,
    /// Samples in one forward and backward pass.
    pub micro: u32,
    /// Whether `global` came from `batch_size` and the ranks, and so may give way at a resume.
    pub derived: bool,
}

impl Batch {
    /// `M`: micro-batches in a full step.
    #[must_use]
    pub fn micro_batches(self) -> u32 {
        self.global.div_ceil(self.micro)
    }

    /// `micro x ranks x accumulation = global` for people, also where it does not come out even.
    #[must_use]
    pub fn sentence(self, ranks: u32) -> String {
        let Self { global, micro, .. } = self;
        let count = self.micro_batches();
        if count.is_multiple_of(ranks) && global.is_multiple_of(micro) {
            return format!("{micro} x {ranks} x {} = {global}", count / ranks);
        }
        let shares: Vec<u32> = cut_evenly(count, ranks).into_iter().map(|range| range.len()).collect();
        let (least, most) =
            (shares.iter().min().copied().unwrap_or(0), shares.iter().max().copied().unwrap_or(0));
        let per_rank = if least == most { format!("{most}") } else { format!("{least} to {most}") };
        let last = match global % micro {
            0 => String::new(),
            rest => format!(", the last of {rest}"),
        };
        format!("{} of {micro}{last}, {per_rank} a rank = {global}", counted(count, "micro-batch"))
    }
}

/// Fills in what was left to this program, and says whether the global batch came from `batch_size`.
///
/// *Errors*: two ways of saying one thing that contradict each other.
pub(super) fn settle(r: &mut Resolved, machine: Machine) -> Result<bool, ConfigError> {
    let derived = settle_batch(r, machine)?;
    let batch = Batch { global: r.count("global_batch"), micro: r.count("micro_batch"), derived };
    let on_cpu = || machine.cores.min(batch.micro_batches()).max(1);
    let ranks = r.int("ranks").or_else(|| gpus(r, machine)).unwrap_or_else(on_cpu);
    r.set("ranks", Value::Int(ranks.into()));
    // What PyTorch computes depends on its threads: their number must not follow from that of the ranks.
    let is_torch = r.word("data.kind") == DataKind::Torch.name();
    let auto = || if is_torch { 1 } else { (machine.cores / ranks).max(1) };
    let threads = r.int("threads").unwrap_or_else(auto);
    r.set("threads", Value::Int(threads.into()));
    settle_length(r)?;
    Ok(derived)
}

/// Whether `auto` may come to GPUs, as far as the keys tell: where it cannot, no GPU is woken for the number of ranks.
fn trained_by_auto(r: &Resolved) -> bool {
    let is_here = || r.word("model.kind") == "torch";
    matches!(ON_GPUS, OnGpus::Tested | OnGpus::Everybody)
        && (PassesBy::of(r) != PassesBy::Kernels || !is_here())
}

/// How many GPUs `devices` comes to, if it comes to some.
fn gpus(r: &Resolved, machine: Machine) -> Option<u32> {
    let count = |devices: &Devices| Some((machine.gpus)(devices, PassesBy::of(r))).filter(|count| *count > 0);
    match Devices::parse(r.text("devices")?) {
        Ok(Devices::Cuda(list)) => u32::try_from(list.numbers().len()).ok(),
        Ok(all @ Devices::All) => count(&all),
        Ok(auto @ Devices::Auto) if trained_by_auto(r) => count(&auto),
        Ok(Devices::Auto | Devices::Cpu) | Err(_) => None,
    }
}

fn settle_batch(r: &mut Resolved, machine: Machine) -> Result<bool, ConfigError> {
    let Some(per_rank) = r.int::<u64>("batch_size") else {
        return match r.int::<u64>("accumulation_steps") {
            None => Ok(false),
            Some(_) => Err(r
                .problem("accumulation_steps", "it says something only together with batch_size")
                .hint("give batch_size too, or micro_batch and global_batch: accumulation follows from them")
                .into()),
        };
    };
    if r.strength("micro_batch") == 0 {
        r.set("micro_batch", Value::Int(per_rank.into()));
    }
    let stronger = r.strength("global_batch").cmp(&r.strength("batch_size"));
    if r.strength("global_batch") > 0 && stronger.is_eq() {
        return Err(r
            .problem("batch_size", "given together with global_batch")
            .hint("batch_size is per rank and gives global_batch; keep one of the two")
            .into());
    }
    if stronger.is_gt() {
        forget_batch_size(r);
        return Ok(false);
    }
    let ranks = r
        .int::<u64>("ranks")
        .or_else(|| gpus(r, machine).map(u64::from))
        .unwrap_or_else(|| machine.cores.into());
    let passes = r.int::<u64>("accumulation_steps").unwrap_or(1);
    let global = per_rank.checked_mul(ranks).and_then(|samples| samples.checked_mul(passes));
    let Some(global) = global.filter(|samples| u32::try_from(*samples).is_ok()) else {
        let message = format!(
            "{per_rank} x {} x {passes} is more than {} samples a step",
            counted(ranks, "rank"),
            u32::MAX
        );
        return Err(r.problem("batch_size", message).into());
    };
    r.set("global_batch", Value::Int(global.into()));
    r.set("ranks", Value::Int(ranks.into()));
    forget_batch_size(r);
    Ok(true)
}

/// What is written out says each thing once: the global batch stands, the way to it does not.
fn forget_batch_size(r: &mut Resolved) {
    r.set("batch_size", Value::Word("none"));
    r.set("accumulation_steps", Value::Word("none"));
}

fn settle_length(r: &mut Resolved) -> Result<(), ConfigError> {
    let (epochs, steps) = (r.int::<u32>("epochs"), r.int::<u64>("steps"));
    let problem: Problem = match (epochs, steps) {
        (Some(_), None) | (None, Some(_)) => return Ok(()),
        (None, None) => {
            let problem = r.problem("epochs", "neither epochs nor steps is given");
            problem.hint("write epochs=20 or steps=1000")
        }
        (Some(_), Some(_)) => match r.strength("epochs").cmp(&r.strength("steps")) {
            std::cmp::Ordering::Less => {
                r.set("epochs", Value::Word("none"));
                return Ok(());
            }
            std::cmp::Ordering::Greater => {
                r.set("steps", Value::Word("none"));
                return Ok(());
            }
            std::cmp::Ordering::Equal => {
                r.problem("steps", "given together with epochs").hint("keep one of the two")
            }
        },
    };
    Err(problem.into())
}

/// The length of the run, after settling.
pub(super) fn length(r: &Resolved) -> Length {
    match r.int("epochs") {
        Some(epochs) => Length::Epochs(epochs),
        None => Length::Steps(r.count("steps")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_multiplies_out_or_says_what_is_uneven() {
        let batch = |global, micro| Batch { global, micro, derived: false };
        assert_eq!(batch(64, 16).sentence(2), "16 x 2 x 2 = 64");
        assert_eq!(batch(64, 16).sentence(1), "16 x 1 x 4 = 64");
        assert_eq!(batch(64, 16).sentence(3), "4 micro-batches of 16, 1 to 2 a rank = 64");
        assert_eq!(batch(100, 16).sentence(7), "7 micro-batches of 16, the last of 4, 1 a rank = 100");
        assert_eq!(batch(16, 16).sentence(2), "1 micro-batch of 16, 0 to 1 a rank = 16");
    }
}
