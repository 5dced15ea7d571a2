//! Several hosts on one machine: a folder each, so that only the first sees the run's; one token; ports of the loopback.

use super::{Running, dtrain, folder, write_text};
use std::path::PathBuf;
use std::process::Command;

/// The hosts of one run.
pub struct Hosts {
    folder: tempfile::TempDir,
    /// Where host 0 is, as `--master` has it.
    pub master: String,
    /// What `--nodes` says.
    pub nodes: String,
}

impl Hosts {
    /// Hosts that reach each other over the loopback.
    pub fn on_loopback(nodes: &str) -> Self {
        Self::at(&format!("127.0.0.1:{}", free_port()), nodes)
    }

    /// Hosts whose first one is at `master`.
    pub fn at(master: &str, nodes: &str) -> Self {
        let hosts = Self { folder: folder(), master: master.into(), nodes: nodes.into() };
        let (made, _) = super::output(hosts.folder.path(), "token new -o token");
        made.succeeded();
        hosts
    }

    /// The folder that a host works in.
    pub fn folder(&self, rank: u32) -> PathBuf {
        let path = self.folder.path().join(format!("host-{rank}"));
        if !path.is_dir() {
            std::fs::create_dir(&path).expect("a folder");
            write_text(&path.join("text.txt"), 2_000);
        }
        path
    }

    /// `dtrain node` of this rank, with the token; host 0 speaks `--json`.
    pub fn node(&self, rank: u32, arguments: &str) -> Command {
        let Self { master, nodes, .. } = self;
        let json = if rank == 0 { "--json" } else { "" };
        let line = format!("node --rank {rank} --master {master} --nodes {nodes} {json} {arguments}");
        let mut command = dtrain(&self.folder(rank), &line);
        command.env("DTRAIN_TOKEN_FILE", self.folder.path().join("token"));
        for name in [
            "MASTER_ADDR",
            "MASTER_PORT",
            "PET_MASTER_ADDR",
            "PET_MASTER_PORT",
            "PET_NODE_RANK",
            "PET_NNODES",
            "SLURM_NODEID",
            "SLURM_NNODES",
        ] {
            command.env_remove(name);
        }
        command
    }

    /// Starts host `rank`.
    pub fn start(&self, rank: u32, arguments: &str) -> Running {
        Running::of(self.node(rank, arguments))
    }
}

/// A port that was free a moment ago, and that nobody is given who asks for any.
pub fn free_port() -> u16 {
    dtrain_transport::free_port(None).expect("a port")
}
