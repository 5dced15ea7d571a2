//! The key `devices`: what the ranks of a host train on, as it is written.
//!
//! Whether this host has such devices is not looked at here.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// What the ranks of a host train on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Devices {
    /// GPUs where they can train, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// Every GPU; on a host without GPUs the CPU.
    All,
    /// These GPUs.
    Cuda(CudaList),
}

/// GPUs by their numbers among those that `CUDA_VISIBLE_DEVICES` leaves: at least one, each once, as they were written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u32>")]
pub struct CudaList(Vec<u32>);

/// Why a value of `devices` is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongDevices {
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub hint: String,
}

/// More GPUs in one host are a slip of the finger.
const MOST: u32 = 1024;

impl Devices {
    /// Reads `auto`, `cpu`, `all` or `cuda:0,1`.
    ///
    /// *Errors*: what is wrong, and what to write instead.
    pub fn parse(text: &str) -> Result<Self, WrongDevices> {
        match text {
            "auto" => return Ok(Self::Auto),
            "cpu" => return Ok(Self::Cpu),
            "all" => return Ok(Self::All),
            _ => {}
        }
        match text.split_once(':') {
            Some(("cuda", numbers)) => CudaList::parse(numbers).map(Self::Cuda),
            _ => Err(unknown(text)),
        }
    }
}

impl CudaList {
    fn parse(numbers: &str) -> Result<Self, WrongDevices> {
        let mut list = Vec::new();
        for part in numbers.split(',') {
            let number = part.trim().parse::<u32>().ok().filter(|number| *number < MOST);
            let number = number.ok_or_else(|| WrongDevices {
                message: format!("expected numbers of GPUs from 0 after cuda:, got \"{part}\""),
                hint: "write devices=cuda:0 or devices=cuda:0,1; devices=all takes every GPU".to_owned(),
            })?;
            if list.contains(&number) {
                return Err(WrongDevices {
                    message: format!("GPU {number} is named twice"),
                    hint: "name each GPU once; ranks=N puts several ranks on one".to_owned(),
                });
            }
            list.push(number);
        }
        Ok(Self(list))
    }

    /// The GPUs, as they were written.
    #[must_use]
    pub fn numbers(&self) -> &[u32] {
        &self.0
    }

    /// The GPU of a rank, by the rank's place among the `ranks` of its host: one each, the first ones where there are more
    /// GPUs, and neighbours together where there are more ranks (their micro-batches are neighbours too).
    ///
    /// *Panics* if `place` is not below `ranks`.
    #[must_use]
    pub fn of_rank(&self, place: u32, ranks: u32) -> u32 {
        assert!(place < ranks, "rank {place} of {ranks}");
        let gpus = self.0.len() as u64;
        let at =
            if u64::from(ranks) <= gpus { place.into() } else { u64::from(place) * gpus / u64::from(ranks) };
        self.0[usize::try_from(at).expect("below the number of GPUs")]
    }
}

impl TryFrom<Vec<u32>> for CudaList {
    type Error = &'static str;

    fn try_from(list: Vec<u32>) -> Result<Self, &'static str> {
        let distinct: BTreeSet<&u32> = list.iter().collect();
        match !list.is_empty() && distinct.len() == list.len() {
            true => Ok(Self(list)),
            false => Err("a list of GPUs names at least one, and each once"),
        }
    }
}

impl fmt::Display for CudaList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        write!(f, "cuda:{}", numbers.join(","))
    }
}

fn unknown(text: &str) -> WrongDevices {
    let numbers = text.rsplit(':').next().unwrap_or_default();
    let meant = CudaList::parse(numbers).ok();
    let hint = match text {
        "cuda" | "gpu" | "gpus" => {
            "name the GPUs: devices=cuda:0 or devices=cuda:0,1; devices=all takes every GPU".to_owned()
        }
        _ if text.parse::<u32>().is_ok() => of_number(text.parse().unwrap_or_default()),
        _ => match meant {
            Some(list) => format!("did you mean {list}?"),
            None => "auto takes what is there, cpu the cores, cuda:0,1 these GPUs, all every GPU".to_owned(),
        },
    };
    WrongDevices { message: format!("expected auto | cpu | cuda:0,1 | all, got \"{text}\""), hint }
}

/// What to write instead of a bare number, which others take for how many and for which.
fn of_number(number: u32) -> String {
    /// More GPUs are not spelled out.
    const SPELLED_OUT: u32 = 8;
    match number {
        0 => "the first GPU is devices=cuda:0, the cores are devices=cpu".to_owned(),
        1 => "for one GPU write devices=cuda:0, for one rank ranks=1".to_owned(),
        count if count <= SPELLED_OUT => {
            let numbers: Vec<String> = (0..count).map(|number| number.to_string()).collect();
            format!(
                "for {count} GPUs write devices=cuda:{}, for {count} ranks ranks={count}",
                numbers.join(",")
            )
        }
        count => format!("for every GPU write devices=all, for {count} ranks ranks={count}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> CudaList {
        match Devices::parse(text) {
            Ok(Devices::Cuda(list)) => list,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn words_and_lists_of_gpus_are_read() {
        for (text, devices) in [("auto", Devices::Auto), ("cpu", Devices::Cpu), ("all", Devices::All)] {
            assert_eq!(Devices::parse(text), Ok(devices));
        }
        assert_eq!(list("cuda:0").numbers(), [0]);
        assert_eq!(list("cuda:2, 0,1").numbers(), [2, 0, 1], "the order is the user's");
        assert_eq!(list("cuda:2, 0,1").to_string(), "cuda:2,0,1");
    }

    #[test]
    fn what_is_no_device_is_answered_with_what_to_write() {
        for (text, message, hint) in [
            ("cuda:0,0", "GPU 0 is named twice", "each GPU once"),
            ("cuda:", "got \"\"", "cuda:0,1"),
            ("cuda:-1", "got \"-1\"", "cuda:0,1"),
            ("cuda:0,x", "got \"x\"", "cuda:0,1"),
            ("cuda:99999", "got \"99999\"", "cuda:0,1"),
            ("cuda", "expected auto | cpu | cuda:0,1 | all, got \"cuda\"", "devices=all"),
            ("gpu:1", "got \"gpu:1\"", "did you mean cuda:1?"),
            ("0,1", "got \"0,1\"", "did you mean cuda:0,1?"),
            ("2", "got \"2\"", "for 2 GPUs write devices=cuda:0,1, for 2 ranks ranks=2"),
            ("0", "got \"0\"", "devices=cuda:0"),
            ("100", "got \"100\"", "devices=all"),
            ("tpu", "got \"tpu\"", "auto takes what is there"),
        ] {
            let error = Devices::parse(text).unwrap_err();
            assert!(error.message.contains(message) && error.hint.contains(hint), "{text}: {error:?}");
        }
    }

    #[test]
    fn ranks_take_gpus_in_order_and_share_them_with_their_neighbours() {
        let of =
            |text: &str, ranks| (0..ranks).map(|place| list(text).of_rank(place, ranks)).collect::<Vec<_>>();
        assert_eq!(of("cuda:3,1", 2), [3, 1]);
        assert_eq!(of("cuda:0,1,2,3", 2), [0, 1]);
        assert_eq!(of("cuda:0,1", 4), [0, 0, 1, 1]);
        assert_eq!(of("cuda:5,6", 3), [5, 5, 6]);
    }
}
