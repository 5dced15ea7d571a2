//! A cluster of Slurm on this machine: its real daemons, each node a network namespace with a host name of its own.
//!
//! Needs root, and the packages `slurmctld`, `slurmd`, `slurm-client` and `munge` of Debian.

use super::network::{Network, Weather};
use super::{PATIENCE, try_kill};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The controller and its nodes.
pub struct Cluster {
    folder: tempfile::TempDir,
    network: Network,
    nodes: usize,
    daemons: Vec<Child>,
}

/// Namespace 0 is the controller's.
const HEAD: &str = "head";
/// How often the state of a job is looked at.
const LOOK: Duration = Duration::from_millis(200);

impl Cluster {
    /// Starts it, with nodes `node1`, `node2` and so on. *Errors*: what is not there, or not allowed.
    pub fn start(nodes: usize, weather: Weather) -> Result<Self, String> {
        for program in ["slurmctld", "slurmd", "sbatch", "munged"] {
            let folders = std::env::var_os("PATH").unwrap_or_default();
            let is_there = std::env::split_paths(&folders).any(|folder| folder.join(program).is_file());
            is_there.then_some(()).ok_or_else(|| format!("there is no {program}"))?;
        }
        let network = Network::build(nodes + 1, weather)?;
        let names: Vec<String> =
            (0..=nodes).map(|host| if host == 0 { HEAD.to_owned() } else { format!("node{host}") }).collect();
        network.name_hosts(&names);
        let mut cluster = Self { folder: super::folder(), network, nodes, daemons: Vec::new() };
        cluster.configure();
        cluster.start_munge();
        for (host, name) in names.iter().enumerate() {
            let daemon = if host == 0 { "slurmctld" } else { "slurmd" };
            let log = std::fs::File::create(cluster.path(&format!("{name}.out"))).expect("a log");
            let mut command = cluster.at(host, name, Command::new(daemon).arg("-D"));
            command.stdout(log.try_clone().expect("a handle")).stderr(log);
            cluster.daemons.push(command.spawn().expect("the daemon starts"));
        }
        let begun = Instant::now();
        while cluster
            .said("sinfo --noheader --Node --states=idle --format=%N --partition=low")
            .lines()
            .count()
            < nodes
        {
            if begun.elapsed() > PATIENCE {
                return Err(format!("the nodes do not come up\n{}", cluster.logs()));
            }
            std::thread::sleep(LOOK);
        }
        Ok(cluster)
    }

    /// A path in the folder that all nodes share, jobs start in, and users have as their home.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The folder itself.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn configure(&self) {
        let (folder, nodes) = (self.folder.path().display(), self.nodes);
        for name in ["state", "spool"] {
            std::fs::create_dir(self.path(name)).expect("a folder");
        }
        // Two partitions, so that a job can be made to give way; a job that was requeued may start after `cred_expire`.
        let text = format!(
            "ClusterName=test\nSlurmctldHost={HEAD}\nSlurmUser=root\nSlurmdUser=root\n\
             AuthType=auth/munge\nCredType=cred/munge\nAuthInfo=socket={folder}/munge.socket,cred_expire=5\n\
             StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool/%n\n\
             SlurmctldPidFile={folder}/slurmctld.pid\nSlurmdPidFile={folder}/%n.pid\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\nSelectType=select/linear\n\
             ReturnToService=2\nSchedulerParameters=sched_interval=2\nPreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n\
             NodeName=node[1-{nodes}] CPUs=1 State=UNKNOWN\n\
             PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=30\n\
             PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF\n"
        );
        std::fs::write(self.path("slurm.conf"), text).expect("a file");
        // No cgroups: they cannot be had in every sandbox, and `ip netns exec` hides them.
        std::fs::write(self.path("cgroup.conf"), "CgroupPlugin=cgroup/v1\n").expect("a file");
    }

    /// One for all nodes: a socket with a path knows of no network.
    fn start_munge(&mut self) {
        let options = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o400).to_owned();
        let mut key = options.open(self.path("munge.key")).expect("a file");
        let seed = super::seed();
        let mut rng = super::Rng(seed);
        key.write_all(&(0..128).map(|_| rng.below(256) as u8).collect::<Vec<u8>>()).expect("a key");
        let mut munged = Command::new("munged");
        munged.args(["--foreground", "--force"]);
        for (option, name) in [
            ("socket", "socket"),
            ("key-file", "key"),
            ("pid-file", "pid"),
            ("log-file", "log"),
            ("seed-file", "seed"),
        ] {
            munged.arg(format!("--{option}={}", self.path(&format!("munge.{name}")).display()));
        }
        let munged = munged.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        self.daemons.push(munged.spawn().expect("munged starts"));
        let begun = Instant::now();
        while !self.path("munge.socket").exists() {
            assert!(begun.elapsed() < PATIENCE, "munged does not come up");
            std::thread::sleep(LOOK);
        }
    }

    /// The same command on a node, under its host name.
    fn at(&self, host: usize, name: &str, command: &Command) -> Command {
        let mut named = Command::new("unshare");
        named.args(["--uts", "sh", "-c", &format!("hostname {name} && exec \"$@\""), name]);
        named.arg(command.get_program()).args(command.get_args()).current_dir(self.folder.path());
        let dtrain = Path::new(env!("CARGO_BIN_EXE_dtrain")).parent().expect("it lies in a folder");
        let path = std::env::var("PATH").unwrap_or_default();
        named.env("PATH", format!("{}:{path}", dtrain.display()));
        named.env("SLURM_CONF", self.path("slurm.conf")).env("HOME", self.folder.path()).env("NO_COLOR", "1");
        for name in ["DTRAIN_TOKEN", "DTRAIN_TOKEN_FILE", "RUST_LOG", "MASTER_ADDR", "MASTER_PORT"] {
            named.env_remove(name);
        }
        self.network.command(host, &named)
    }

    /// What a command of Slurm writes, started on the head node.
    pub fn said(&self, line: &str) -> String {
        let mut words = line.split_whitespace();
        let mut command = Command::new(words.next().expect("a program"));
        let done = self.at(0, HEAD, command.args(words)).output().expect("it starts");
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    }

    /// Submits a batch file; the number of its job.
    #[track_caller]
    pub fn submit(&self, line: &str) -> u32 {
        let said = self.said(&format!("sbatch --parsable {line}"));
        said.parse().unwrap_or_else(|_| panic!("not submitted: {said:?}\n{}", self.logs()))
    }

    /// What Slurm knows of a job under this key, such as `JobState`.
    pub fn about(&self, job: u32, key: &str) -> String {
        let all = self.said(&format!("scontrol --oneliner show job {job}"));
        let found = all.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("no {key} in {all:?}")).to_owned()
    }

    /// Waits until a job is in one of these states.
    #[track_caller]
    pub fn wait_for_state(&self, job: u32, states: &[&str]) -> String {
        let begun = Instant::now();
        loop {
            let state = self.about(job, "JobState");
            if states.contains(&state.as_str()) {
                return state;
            }
            assert!(begun.elapsed() < PATIENCE, "job {job} is {state}, not {states:?}\n{}", self.log(job));
            std::thread::sleep(LOOK);
        }
    }

    /// What a job has said.
    pub fn log(&self, job: u32) -> String {
        std::fs::read_to_string(self.path(&format!("dtrain-{job}.log"))).unwrap_or_default()
    }

    /// Waits until a job has said these words so many times.
    #[track_caller]
    pub fn wait_for_words(&self, job: u32, words: &str, times: usize) {
        let begun = Instant::now();
        while self.log(job).matches(words).count() < times {
            let waited = begun.elapsed() > PATIENCE;
            assert!(!waited, "not said {times} times: {words}\n{}\n{}", self.log(job), self.logs());
            std::thread::sleep(LOOK);
        }
    }

    /// The process of dtrain that a task of this node is.
    #[track_caller]
    pub fn task(&self, node: usize) -> u32 {
        let begun = Instant::now();
        loop {
            let is_task = |pid: &u32| {
                let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                let mut words = line.split(|byte| *byte == 0);
                words.next().is_some_and(|first| first.ends_with(b"dtrain")) && words.next() == Some(b"node")
            };
            if let Some(pid) = self.network.pids(node).into_iter().find(is_task) {
                return pid;
            }
            assert!(begun.elapsed() < PATIENCE, "no dtrain on node {node}");
            std::thread::sleep(LOOK);
        }
    }

    fn logs(&self) -> String {
        let outputs = std::fs::read_dir(self.folder.path()).expect("a folder").flatten();
        let outputs = outputs.filter(|entry| entry.path().extension().is_some_and(|end| end == "out"));
        outputs.map(|entry| std::fs::read_to_string(entry.path()).unwrap_or_default()).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Steps of jobs are in sessions of their own: what is in the namespaces is ours.
        for host in 0..=self.nodes {
            self.network.pids(host).into_iter().for_each(try_kill);
        }
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}
