//! Two hosts on this machine: a network namespace each, and between them a cable (a veth pair) and nothing else.
//!
//! A namespace here has no name and no file: it lasts as long as a process in it, and its end of the cable as long as the
//! namespace. Its keeper is a `cat` that reads a pipe of the drill and is bound to its life. So whatever ends the drill,
//! `kill -9` too, takes everything with it, and there is nothing that a later drill would have to clear away.
//!
//! It takes root, or a machine that gives users namespaces of their own. It does not know what runs on the hosts.

use crate::error::CliError;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

/// An end of the cable has this name in each namespace.
const CABLE: &str = "cable";
/// Addresses that are nobody's (RFC 5737). No other host is on this network, so none can be in use.
const ADDRESSES: [&str; 2] = ["192.0.2.1", "192.0.2.2"];

/// By what right namespaces are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Right {
    /// This process may.
    Own,
    /// In a user namespace it is root.
    UserNamespace,
}

impl Right {
    /// The words that a command is started with, so that it finds itself in a new network.
    fn apart(self) -> &'static [&'static str] {
        match self {
            Self::Own => &["unshare", "--net"],
            Self::UserNamespace => &["unshare", "--map-root-user", "--net"],
        }
    }

    /// What of a process one has to enter, to have the right where it is.
    fn enter(self, pid: u32) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["nsenter".into(), "--target".into(), pid.to_string().into()];
        if self == Self::UserNamespace {
            words.extend(["--user".into(), "--preserve-credentials".into()]);
        }
        words
    }
}

/// Two hosts and the cable between them.
#[derive(Debug)]
pub struct VirtualNetwork {
    right: Right,
    hosts: [Keeper; 2],
}

/// The process that a namespace lasts as long as.
#[derive(Debug)]
struct Keeper {
    child: Child,
    // It ends when this pipe does.
    _pipe: ChildStdin,
}

impl VirtualNetwork {
    /// Makes the hosts and connects them.
    ///
    /// *Errors*: the machine does not allow it, or a tool is missing; of kind usage.
    pub fn build() -> Result<Self, CliError> {
        let mut error = CliError::usage(
            "the drill partition needs two network namespaces with a veth pair between them, and cannot have them here",
        );
        for right in [Right::Own, Right::UserNamespace] {
            match Self::by(right) {
                Ok(network) => return Ok(network),
                Err(why) => error = error.cause(why),
            }
        }
        Err(error.hint(
            "run it as root, or where users may have namespaces; it uses `ip`, `unshare` and `nsenter` \
             (packages iproute2 and util-linux)",
        ))
    }

    fn by(right: Right) -> Result<Self, String> {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let first = Keeper::start(&words(right.apart()))?;
        // The second network belongs to the same user namespace: whoever may join the two is root in it.
        let second = match right {
            Right::Own => Keeper::start(&words(right.apart()))?,
            Right::UserNamespace => {
                let mut inside = right.enter(first.child.id());
                inside.extend(words(Right::Own.apart()));
                Keeper::start(&inside)?
            }
        };
        let network = Self { right, hosts: [first, second] };
        let other_end = network.hosts[1].child.id();
        network.ip(0, &format!("link add {CABLE} type veth peer name {CABLE} netns {other_end}"))?;
        for (host, address) in ADDRESSES.iter().enumerate() {
            network.ip(host, "link set lo up")?;
            network.ip(host, &format!("address add {address}/24 dev {CABLE}"))?;
            network.ip(host, &format!("link set {CABLE} up"))?;
        }
        Ok(network)
    }

    /// The address of the host that the other one calls.
    #[must_use]
    pub fn master() -> &'static str {
        ADDRESSES[0]
    }

    /// The words that a command is started with, so that it runs on this host.
    #[must_use]
    pub fn around(&self, host: usize) -> Vec<OsString> {
        let mut words = self.right.enter(self.hosts[host].child.id());
        words.extend(["--net".into(), "--".into()]);
        words
    }

    /// Takes the second host off the network.
    ///
    /// *Errors*: of the system.
    pub fn cut(&self) -> Result<(), CliError> {
        self.ip(1, &format!("link set {CABLE} down"))
            .map_err(|why| CliError::failed("the link of a host cannot be cut").cause(why))
    }

    /// Puts the second host on the network again.
    ///
    /// *Errors*: of the system.
    pub fn mend(&self) -> Result<(), CliError> {
        self.ip(1, &format!("link set {CABLE} up"))
            .map_err(|why| CliError::failed("the link of a host cannot be set up again").cause(why))
    }

    fn ip(&self, host: usize, arguments: &str) -> Result<(), String> {
        let around = self.around(host);
        let done = Command::new(&around[0])
            .args(&around[1..])
            .arg("ip")
            .args(arguments.split(' '))
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("{}: {error}", around[0].display()))?;
        match done.status.success() {
            true => Ok(()),
            false => Err(format!("`ip {arguments}`: {}", String::from_utf8_lossy(&done.stderr).trim())),
        }
    }
}

impl Keeper {
    /// Starts one with words that give it a network of its own, and waits until it is there.
    fn start(apart: &[OsString]) -> Result<Self, String> {
        let shown = apart.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let told = |what: &dyn std::fmt::Display| format!("`{shown}`: {what}");
        let this = std::env::current_exe().map_err(|error| told(&error))?;
        let mut child = Command::new(&apart[0])
            .args(&apart[1..])
            .arg(this)
            .args(["run-rank", &std::process::id().to_string(), "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| told(&error))?;
        let mut pipe = child.stdin.take().expect("it is a pipe");
        let stdout = child.stdout.take().expect("it is a pipe");
        // A keeper that cannot be there has ended: then the pipe is broken, and nothing comes back.
        let _ = pipe.write_all(b"\n");
        let there = BufReader::new(stdout).read_line(&mut String::new()).is_ok_and(|read| read > 0);
        let stderr = child.stderr.take();
        let keeper = Self { child, _pipe: pipe };
        if there {
            return Ok(keeper);
        }
        drop(keeper);
        let mut said = String::new();
        // What it said is for people; without it the command alone is named.
        let _ = stderr.map(|mut stderr| stderr.read_to_string(&mut said));
        Err(told(&said.trim()))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
