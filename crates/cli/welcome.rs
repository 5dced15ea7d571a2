//! What a rank is welcomed with, as text: where the run is, how hosts reach each other, and the configuration.
//!
//! The supervisor sends it to every host; a host sends it on to its ranks, with what is its own put in. It does not know
//! what the configuration means.

use crate::config::{Config, CudaList, Devices, Machine, Source};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// The line between the head and the configuration.
const END_OF_HEAD: &str = "# ---";
/// The file in a run's folder by which ranks find out whether they see it.
const PROBE_FILE: &str = ".seen-by-hosts";

/// The addresses of a host for the links between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeshAddress {
    /// Where its ranks listen.
    pub listen: IpAddr,
    /// Where others reach them.
    pub reached_at: IpAddr,
}

/// What only a run of several hosts has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// What the probe file of this life of the supervisor says.
    pub probe: String,
    /// Training samples: hosts bring their own files, and these must be of the same data.
    pub samples: u64,
    /// The own host's addresses; the host itself puts them in.
    pub mesh: Option<MeshAddress>,
}

/// A welcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The folder of the run, as its supervisor writes it.
    pub run_dir: PathBuf,
    /// What a run of several hosts needs.
    pub hosts: Option<Hosts>,
    /// The GPUs that the ranks of the own host train on, if they do; the host itself puts them in.
    pub gpus: Option<CudaList>,
    /// The configuration as YAML.
    pub yaml: String,
}

impl Welcome {
    /// As text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!("# run_dir {}\n", self.run_dir.display());
        if let Some(Hosts { probe, samples, mesh }) = &self.hosts {
            text += &format!("# probe {probe}\n# samples {samples}\n");
            if let Some(MeshAddress { listen, reached_at }) = mesh {
                text += &format!("# mesh {listen} {reached_at}\n");
            }
        }
        if let Some(gpus) = &self.gpus {
            text += &format!("# gpus {gpus}\n");
        }
        format!("{text}{END_OF_HEAD}\n{}", self.yaml)
    }

    /// Reads it.
    ///
    /// *Errors*: a sentence for people.
    pub fn read(text: &str) -> Result<Self, String> {
        let wrong = || "this is no welcome of this version of dtrain".to_owned();
        let end = format!("{END_OF_HEAD}\n");
        let (head, yaml) = text.split_once(&end).ok_or_else(wrong)?;
        let value = |key: &str| {
            let prefix = format!("# {key} ");
            head.lines().find_map(|line| line.strip_prefix(&prefix).map(str::to_owned))
        };
        let mesh = match value("mesh") {
            None => None,
            Some(text) => {
                let (listen, reached_at) = text.split_once(' ').ok_or_else(wrong)?;
                let read = |text: &str| text.parse::<IpAddr>().map_err(|_| wrong());
                Some(MeshAddress { listen: read(listen)?, reached_at: read(reached_at)? })
            }
        };
        let hosts = match value("probe") {
            None => None,
            Some(probe) => {
                let samples = value("samples").and_then(|text| text.parse().ok()).ok_or_else(wrong)?;
                Some(Hosts { probe, samples, mesh })
            }
        };
        let gpus = match value("gpus").map(|text| Devices::parse(&text)) {
            None => None,
            Some(Ok(Devices::Cuda(list))) => Some(list),
            Some(_) => return Err(wrong()),
        };
        let run_dir = value("run_dir").ok_or_else(wrong)?.into();
        Ok(Self { run_dir, hosts, gpus, yaml: yaml.to_owned() })
    }

    /// The configuration in it.
    ///
    /// *Errors*: a sentence for people.
    pub fn config(&self) -> Result<Config, String> {
        Config::parse::<&str>(Some(self.source()), &[], Machine::here()).map_err(|error| error.to_string())
    }

    /// The configuration as a file that messages can point at.
    #[must_use]
    pub fn source(&self) -> Source {
        Source { path: self.run_dir.join("config.yaml"), text: self.yaml.clone() }
    }

    /// Whether this process sees the folder of the run: what its supervisor wrote there can be read here.
    #[must_use]
    pub fn sees_run_folder(&self) -> bool {
        let probe = self.hosts.as_ref().map(|hosts| hosts.probe.as_str());
        probe.is_none_or(|probe| {
            std::fs::read_to_string(probe_file(&self.run_dir)).is_ok_and(|text| text == probe)
        })
    }
}

/// Puts a probe into the folder of a run.
///
/// *Errors*: of the system.
pub fn write_probe(run_dir: &Path, probe: &str) -> std::io::Result<()> {
    std::fs::write(probe_file(run_dir), probe)
}

/// Takes it away again.
pub fn remove_probe(run_dir: &Path) {
    // What stays is overwritten by the next life of the run.
    let _ = std::fs::remove_file(probe_file(run_dir));
}

fn probe_file(run_dir: &Path) -> PathBuf {
    run_dir.join(PROBE_FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_welcome_survives_its_text() {
        let mesh = MeshAddress { listen: [0, 0, 0, 0].into(), reached_at: "fd00::1".parse().unwrap() };
        let hosts = Hosts { probe: "abc".into(), samples: 1617, mesh: Some(mesh) };
        let Ok(Devices::Cuda(list)) = Devices::parse("cuda:2,0") else { panic!("two GPUs") };
        for hosts in [None, Some(Hosts { mesh: None, ..hosts.clone() }), Some(hosts)] {
            for gpus in [None, Some(list.clone())] {
                let (hosts, yaml) = (hosts.clone(), "seed: 7\n".to_owned());
                let welcome = Welcome { run_dir: "runs/a b".into(), hosts, gpus, yaml };
                assert_eq!(Welcome::read(&welcome.to_text()), Ok(welcome));
            }
        }
        assert!(Welcome::read("seed: 7\n").is_err());
    }

    #[test]
    fn a_folder_is_seen_where_the_text_of_this_life_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let hosts = |probe: &str| Some(Hosts { probe: probe.into(), samples: 1, mesh: None });
        let welcome =
            |hosts| Welcome { run_dir: folder.path().to_owned(), hosts, gpus: None, yaml: String::new() };
        assert!(welcome(None).sees_run_folder(), "one host sees its own folder");
        assert!(!welcome(hosts("one")).sees_run_folder());
        write_probe(folder.path(), "one").unwrap();
        assert!(welcome(hosts("one")).sees_run_folder());
        assert!(!welcome(hosts("two")).sees_run_folder(), "another run of the same name elsewhere");
    }
}
