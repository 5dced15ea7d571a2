//! The command lines of a host of several, and of those who ask whether it is ready or have it leave.

use super::train::Train;
use crate::mesh_address::PortRange;
use clap::Args;

pub(super) const NODE_EXAMPLES: &str = "\
Examples (DTRAIN_TOKEN_FILE names the same token on both hosts):
  dtrain node --rank 0 --master 10.0.0.1 --nodes 2 -c run.yaml    on the host 10.0.0.1
  dtrain node --rank 1 --master 10.0.0.1 --nodes 2                on the other one
  dtrain node --rank 0 --master head:29500 --nodes 2..4 ranks=8   two more hosts may join later
  srun --ntasks-per-node=1 dtrain node -c run.yaml                in a job of Slurm: hosts, port and token follow from it

PET_NODE_RANK, PET_NNODES, PET_MASTER_ADDR, PET_MASTER_PORT, SLURM_NODEID, SLURM_NNODES, JOB_COMPLETION_INDEX, MASTER_ADDR and MASTER_PORT
stand in for flags.
Exit codes: 0 done, 1 training failed, 2 usage or configuration, 3 not enough ranks left, 130 interrupted.";

/// `dtrain node`.
#[derive(Args, Clone, Debug, Default)]
pub struct Node {
    /// Which of the hosts this is, from 0; host 0 leads first
    #[arg(long, alias = "node-rank", value_name = "R")]
    pub rank: Option<u32>,
    /// The host of rank 0, and behind commas those that may lead after it: names or addresses, a port if it is not 29400
    #[arg(long, value_name = "ADDR[:PORT][,ADDR...]")]
    pub master: Option<String>,
    /// With how many hosts the run begins, and how many it may have [default: 1]
    #[arg(long, alias = "nnodes", value_name = "N[..MAX]")]
    pub nodes: Option<String>,
    /// The address of this host to use [default: the one that leads to the master]
    #[arg(long, value_name = "ADDR")]
    pub bind: Option<std::net::IpAddr>,
    /// The UDP ports of this host at which its ranks reach those of others, one each [default: the system chooses]
    #[arg(long, value_name = "FIRST-LAST")]
    pub ports: Option<PortRange>,
    /// What is trained; --resume and --fork are for the host of rank 0.
    #[command(flatten)]
    pub train: Train,
}

/// `dtrain ready`.
#[derive(Args, Clone, Debug)]
pub struct Ready {
    /// Which process is meant [default: the one `dtrain node` that is here]
    #[arg(long, value_name = "PID")]
    pub pid: Option<i32>,
}

/// `dtrain drain`.
#[derive(Args, Clone, Debug)]
pub struct Drain {
    /// Which process is meant [default: the one `dtrain node` that is here]
    #[arg(long, value_name = "PID")]
    pub pid: Option<i32>,
    /// Seconds to wait for its end [default: as long as it takes]
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u32>,
}
