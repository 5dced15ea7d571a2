//! What the command line asks for: operations, sizes, and how the ranks live. It does not know how any of it is measured.

use super::case::Case;
use crate::arguments::BenchCollectives;
use crate::config::{Isolation, Value, nearest, size};
use crate::doctor::free_memory;
use crate::error::CliError;
use crate::report::bytes;
use dtrain_collective::OpKind;
use dtrain_types::counted;

/// More ranks than this on one host are a slip.
const MOST_RANKS: u32 = 256;
/// *Units*: bytes.
const LARGEST: u64 = 16 << 30;
/// All samples of a size together move about so much. *Units*: bytes.
const MOVED: u64 = 256 << 20;

/// All that is to be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BenchPlan {
    pub ranks: u32,
    pub operations: Vec<OpKind>,
    /// *Units*: bytes.
    pub sizes: Vec<u64>,
    pub ring: bool,
    pub bf16: bool,
    pub isolation: Isolation,
    pub samples: Option<u32>,
    pub limit: bool,
    pub pin: bool,
}

impl BenchPlan {
    /// *Errors*: usage, each with a hint.
    pub fn read(arguments: &BenchCollectives) -> Result<Self, CliError> {
        let ranks = arguments.ranks;
        if !(1..=MOST_RANKS).contains(&ranks) {
            let error = CliError::usage(format!(
                "--ranks: {} cannot be measured on one host",
                counted(ranks, "rank")
            ));
            return Err(error.hint(format!("give a number from 1 to {MOST_RANKS}")));
        }
        let operations = operations(&arguments.op)?;
        let ring = word("--mode", &arguments.mode, &[("exact", false), ("ring", true)])?;
        let bf16 = word("--wire", &arguments.wire, &[("f32", false), ("bf16", true)])?;
        let kinds = [("process", Isolation::Process), ("thread", Isolation::Thread)];
        let isolation = word("--isolation", &arguments.isolation, &kinds)?;
        let sizes = match &arguments.sizes {
            Some(list) => {
                list.split(',').map(|text| one_size("--sizes", text)).collect::<Result<Vec<u64>, _>>()?
            }
            None => steps(arguments)?,
        };
        let needed = sizes.iter().max().map_or(0, |largest| largest.saturating_mul(ranks.into()));
        if let Some(free) = free_memory().filter(|free| needed > *free) {
            let (needed, free) = (bytes(needed), bytes(free));
            let need = if ranks == 1 { "needs" } else { "need" };
            let what =
                format!("{} {need} {needed} for the largest size, {free} are free", counted(ranks, "rank"));
            return Err(CliError::usage(what).hint("give a smaller --to, or --sizes, or fewer --ranks"));
        }
        let BenchCollectives { samples, limit, pin, .. } = *arguments;
        if limit && (ring && isolation == Isolation::Thread) {
            let error = CliError::usage("--limit: ranks that send frames through queues share no memory");
            return Err(error.hint("leave --limit out, or take --isolation process"));
        }
        Ok(Self { ranks, operations, sizes, ring, bf16, isolation, samples, limit, pin })
    }

    /// Every measurement, in order: operation by operation, from the first size to the last.
    pub fn cases(&self) -> impl Iterator<Item = Case> + '_ {
        self.operations.iter().flat_map(|operation| {
            let sizes: &[u64] = if *operation == OpKind::Barrier { &[0] } else { &self.sizes };
            sizes.iter().map(|size| self.case(*operation, *size))
        })
    }

    fn case(&self, operation: OpKind, bytes: u64) -> Case {
        let Self { ranks, ring, bf16, limit, pin, .. } = *self;
        let usual = (MOVED / bytes.max(1)).clamp(9, 200) as u32;
        let samples = self.samples.unwrap_or(usual);
        let limit = limit && operation == OpKind::AllReduce;
        Case { operation, bytes, ranks, ring, bf16, samples, limit, pin }
    }
}

fn operations(word: &str) -> Result<Vec<OpKind>, CliError> {
    if word == "all" {
        return Ok(OpKind::ALL.to_vec());
    }
    match OpKind::from_name(word) {
        Some(operation) => Ok(vec![operation]),
        None => Err(unknown("--op", word, OpKind::NAMES.iter().copied().chain(["all"]).collect())),
    }
}

fn word<T: Copy>(flag: &str, word: &str, choice: &[(&'static str, T)]) -> Result<T, CliError> {
    let found = choice.iter().find(|(name, _)| *name == word);
    found
        .map(|(_, value)| *value)
        .ok_or_else(|| unknown(flag, word, choice.iter().map(|(name, _)| *name).collect()))
}

fn unknown(flag: &str, word: &str, names: Vec<&str>) -> CliError {
    let error = CliError::usage(format!("{flag}: there is no `{word}`"));
    match nearest(word, names.iter().copied()) {
        Some(name) => error.hint(format!("did you mean {name}?")),
        None => error.hint(format!("there are {}", names.join(", "))),
    }
}

fn one_size(flag: &str, text: &str) -> Result<u64, CliError> {
    let wrong = |what: &str| {
        let error = CliError::usage(format!("{flag}: `{}` {what}", text.trim()));
        error.hint("sizes are written as in 4KiB,64KiB,16MiB")
    };
    let bytes = size(text.trim()).ok_or_else(|| wrong("is no size"))?;
    if !bytes.is_multiple_of(4) {
        return Err(wrong("is no whole number of floats, which have 4 bytes"));
    }
    if bytes > LARGEST {
        return Err(wrong(&format!("is above {}", Value::Size(LARGEST))));
    }
    Ok(bytes)
}

/// The sizes between two, as nccl-tests counts them.
fn steps(arguments: &BenchCollectives) -> Result<Vec<u64>, CliError> {
    let (from, to) = (one_size("--from", &arguments.from)?, one_size("--to", &arguments.to)?);
    if from > to {
        let what = format!("--from {} is above --to {}", arguments.from, arguments.to);
        return Err(CliError::usage(what).hint("give the smaller size first"));
    }
    if arguments.factor < 2 {
        let error = CliError::usage(format!("--factor: {} leads nowhere", arguments.factor));
        return Err(error.hint("give a whole number of 2 or more"));
    }
    let next = |size: &u64| size.checked_mul(arguments.factor).filter(|next| *next <= to);
    Ok(std::iter::successors(Some(from), next).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Arguments, Bench, Command};

    fn read(line: &str) -> Result<BenchPlan, String> {
        let words = format!("dtrain bench collectives {line}");
        let words = words.split_whitespace().map(Into::into);
        let Command::Bench(Bench::Collectives(arguments)) = Arguments::from_words(words).unwrap().command
        else {
            panic!("another command")
        };
        BenchPlan::read(&arguments).map_err(|error| console::strip_ansi_codes(&error.render()).into_owned())
    }

    #[test]
    fn sizes_are_a_list_or_steps_from_one_to_another() {
        let sizes = |line: &str| read(line).unwrap().sizes;
        assert_eq!(sizes("--sizes 4KiB,64KiB"), [4 << 10, 64 << 10]);
        assert_eq!(sizes("--from 1KiB --to 64KiB --factor 8"), [1 << 10, 8 << 10, 64 << 10]);
        assert_eq!(sizes("--from 1KiB --to 63KiB --factor 8"), [1 << 10, 8 << 10]);
        let usual = sizes("");
        assert_eq!((usual.first(), usual.last(), usual.len()), (Some(&4096), Some(&(256 << 20)), 9));
    }

    #[test]
    fn every_operation_is_measured_at_every_size_but_a_barrier_has_none() {
        let plan = read("--op all --sizes 4KiB,1MiB").unwrap();
        let cases: Vec<Case> = plan.cases().collect();
        assert_eq!(cases.len(), 11);
        assert_eq!(cases.iter().filter(|case| case.bytes == 0).count(), 1);
        assert!(
            cases[0].samples == 200 && read("--samples 5").unwrap().cases().all(|case| case.samples == 5)
        );
    }

    #[test]
    fn what_cannot_be_measured_is_refused_with_a_hint() {
        for (line, words) in [
            ("--op all_redcue", "did you mean all_reduce?"),
            ("--op x", "there are all_reduce, reduce_scatter"),
            ("--mode rings", "did you mean ring?"),
            ("--wire bf61", "did you mean bf16?"),
            ("--isolation host", "there are process, thread"),
            ("--sizes 4kib", "`4kib` is no size"),
            ("--sizes 4KiB,", "`` is no size"),
            ("--sizes 5", "whole number of floats"),
            ("--sizes 17GiB", "is above 16GiB"),
            ("--from 8KiB --to 4KiB", "give the smaller size first"),
            ("--factor 1", "2 or more"),
            ("--ranks 0", "from 1 to 256"),
            ("--ranks 256 --sizes 16GiB", "fewer --ranks"),
            ("--limit --mode ring --isolation thread", "leave --limit out"),
        ] {
            let message = read(line).expect_err(line);
            assert!(message.contains(words), "{line}: {message}");
            let hints = message.lines().filter(|line| line.starts_with("hint: ")).count();
            let errors = message.lines().filter(|line| line.starts_with("error: ")).count();
            assert_eq!((errors, hints), (1, 1), "{message}");
        }
    }
}
