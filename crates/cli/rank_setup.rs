//! What a rank is set up with: which run it is of, where that lies, and how hosts reach each other.
//!
//! The supervisor sends it to every host; a host sends it on to its ranks, with what is its own put in. It travels in the
//! encoding of all messages. It does not know what the configuration means.

use crate::config::{Config, CudaList, HostCount, Source};
use crate::external::Agreement;
use crate::frozen_parameters::FrozenSource;
use crate::gpus::{ByLibraries, this_machine};
use crate::mesh_address::MeshAddress;
use dtrain_checkpoint::Digest;
use dtrain_protocol::RankSetup;
use dtrain_runtime::{FolderNote, Outlives};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The file in a run's folder by which ranks find out whether they see it.
const PROBE: FolderNote = FolderNote(".seen-by-hosts");

/// What only a run of several hosts has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hosts {
    /// What the probe file of this life of the supervisor says.
    pub probe: String,
    /// Training samples: hosts bring their own files, and these must be of the same data.
    pub samples: u64,
    /// The own host's addresses; the host itself puts them in.
    pub mesh: Option<MeshAddress>,
}

/// What the ranks of a run are set up with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSetup {
    /// The folder of the run, as its supervisor writes it.
    #[serde(with = "crate::serde_path")]
    pub run_dir: PathBuf,
    /// What a run of several hosts needs.
    pub hosts: Option<Hosts>,
    /// The GPUs that the ranks of the own host train on, if they do; the host itself puts them in.
    pub gpus: Option<CudaList>,
    /// The configuration as YAML.
    pub yaml: String,
    /// What another program's model is to agree with, where one makes the passes.
    pub external: Option<Agreement>,
    /// What libraries do for the ranks, on GPUs of one host.
    pub by_libraries: ByLibraries,
    /// The digest of the parameters that stay as they are, where some lie apart.
    pub frozen: Option<Digest>,
}

impl RunSetup {
    /// Whether other hosts may take part.
    #[must_use]
    pub fn host_count(&self) -> HostCount {
        if self.hosts.is_some() { HostCount::Several } else { HostCount::One }
    }

    /// As links carry it.
    #[must_use]
    pub fn to_setup(&self) -> RankSetup {
        RankSetup::of(self)
    }

    /// Reads it.
    ///
    /// *Errors*: a sentence for people.
    pub fn read(setup: &RankSetup) -> Result<Self, String> {
        setup.read().ok_or_else(|| "this is no set-up of this version of dtrain".to_owned())
    }

    /// The configuration in it.
    ///
    /// *Errors*: a sentence for people.
    pub fn config(&self) -> Result<Config, String> {
        Config::parse::<&str>(Some(self.source()), &[], this_machine()).map_err(|error| error.to_string())
    }

    /// The configuration as a file that messages can point at.
    #[must_use]
    pub fn source(&self) -> Source {
        Source { path: self.run_dir.join("config.yaml"), text: self.yaml.clone() }
    }

    /// Where the parameters that stay as they are come from: the folder of the run, where it is seen.
    #[must_use]
    pub fn frozen_source(&self) -> FrozenSource {
        let run = (self.frozen.is_some() && self.sees_run_folder()).then(|| self.run_dir.clone());
        FrozenSource { run, digest: self.frozen }
    }

    /// Whether this process sees the folder of the run: what its supervisor wrote there can be read here.
    #[must_use]
    pub fn sees_run_folder(&self) -> bool {
        let probe = self.hosts.as_ref().map(|hosts| hosts.probe.as_str());
        probe.is_none_or(|probe| PROBE.read(&self.run_dir).is_some_and(|text| text == probe))
    }
}

/// The probe of a life of the supervisor that never took it away: it died.
#[must_use]
pub fn left_probe(run_dir: &Path) -> Option<String> {
    PROBE.read(run_dir).filter(|text| !text.is_empty())
}

/// Puts a probe into the folder of a run.
///
/// *Errors*: of the system.
pub fn write_probe(run_dir: &Path, probe: &str) -> std::io::Result<()> {
    PROBE.write(run_dir, probe, Outlives::Power)
}

/// Takes it away again.
pub fn remove_probe(run_dir: &Path) {
    PROBE.forget(run_dir);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Devices;
    use crate::gpus::Pinned;
    use dtrain_cuda::libraries::Numbers;
    use dtrain_cuda::libraries::cublaslt::PinnedAlgorithm;
    use dtrain_cuda::libraries::pins::{Pin, ProductPins};
    use dtrain_cuda::libraries::product::{Finish, ProductKey};
    use dtrain_engine::device::{Product, Strides, Write};
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    /// A product by a library whose name is no text, by an algorithm of words of all sizes.
    fn multiplied() -> ByLibraries {
        let (a, b) = (Strides::rows(64), Strides::transposed(64));
        let shape = Product { m: 24, n: 128, k: 64, a, b, c_row: 128, write: Write::Set };
        let key = ProductKey::of(&shape, Numbers::Bf16, Finish::PlusBias, 16).unwrap();
        let algorithm = [1, u64::MAX, 0x8000_0000_0000_0001, 0, 5, 6, 7, 1 << 53 | 1];
        let algorithm = Some(PinnedAlgorithm { key, algorithm, workspace: 1 << 20, version: 130_100 });
        let mut pins = ProductPins::new("Made-up", 130_100);
        pins.put(Pin { key, algorithm, took: [3, 9] });
        let library = PathBuf::from(OsString::from_vec(b"/a \xff/libcublasLt.so.13".to_vec()));
        ByLibraries { products: Some(Pinned { library, pins }), ..ByLibraries::default() }
    }

    #[test]
    fn a_set_up_survives_its_journey() {
        let mesh = MeshAddress {
            listen: [0, 0, 0, 0].into(),
            reached_at: "fd00::1".parse().unwrap(),
            ports: "7-9".parse().ok(),
        };
        let hosts = Hosts { probe: "abc".into(), samples: 1617, mesh: Some(mesh) };
        let Ok(Devices::Cuda(list)) = Devices::parse("cuda:2,0") else { panic!("two GPUs") };
        for hosts in [None, Some(Hosts { mesh: None, ..hosts.clone() }), Some(hosts)] {
            for gpus in [None, Some(list.clone())] {
                // A name that is no text, and a configuration that looks like a set-up of old.
                let run_dir = PathBuf::from(OsString::from_vec(b"runs/a \xff\n# gpus cuda:7".to_vec()));
                let yaml = "seed: 7\n# ---\n# bench mlp\n".to_owned();
                let external =
                    gpus.as_ref().map(|_| Agreement(vec![("parameter 0.weight".into(), "[2]".into())]));
                let by_libraries = gpus.as_ref().map_or(ByLibraries::default(), |_| multiplied());
                let hosts = hosts.clone();
                let frozen = hosts.as_ref().map(|_| Digest([7; 32]));
                let run = RunSetup { run_dir, hosts, gpus, yaml, external, by_libraries, frozen };
                assert_eq!(RunSetup::read(&run.to_setup()), Ok(run));
            }
        }
        assert!(RunSetup::read(&RankSetup::of(&"seed: 7\n")).is_err());
    }

    #[test]
    fn a_list_of_gpus_that_nobody_can_write_is_no_set_up() {
        let bytes = |numbers: &[u32]| RankSetup::of(&numbers).read::<CudaList>();
        assert!(bytes(&[]).is_none() && bytes(&[1, 1]).is_none());
        assert_eq!(bytes(&[1, 0]).map(|list| list.to_string()).as_deref(), Some("cuda:1,0"));
    }

    #[test]
    fn a_folder_is_seen_where_the_text_of_this_life_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let hosts = |probe: &str| Some(Hosts { probe: probe.into(), samples: 1, mesh: None });
        let run = |hosts| RunSetup {
            run_dir: folder.path().to_owned(),
            hosts,
            gpus: None,
            yaml: String::new(),
            external: None,
            by_libraries: ByLibraries::default(),
            frozen: None,
        };
        assert!(run(None).sees_run_folder(), "one host sees its own folder");
        assert!(!run(hosts("one")).sees_run_folder());
        write_probe(folder.path(), "one").unwrap();
        assert!(run(hosts("one")).sees_run_folder());
        assert!(!run(hosts("two")).sees_run_folder(), "another run of the same name elsewhere");
    }
}
