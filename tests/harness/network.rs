//! Hosts that only a bad network connects: a network namespace each, and between them nothing but a relay of ours that
//! delays every packet and drops some, by a seed.
//!
//! A namespace's only way out is a TUN device whose other end this process holds: what a host sends arrives here as
//! packets, and what is written here the host receives. Needs root and `/dev/net/tun`.

use rustix::ioctl::{Setter, ioctl};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What the relay does to packets.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Every packet arrives so much later.
    pub delay: Duration,
    /// One packet in so many is dropped.
    pub one_in: u64,
    /// Which ones.
    pub seed: u64,
}

/// Packets that the relay has seen, and those that it dropped.
#[derive(Debug, Default)]
pub struct Counts {
    pub seen: AtomicU64,
    pub dropped: AtomicU64,
}

/// Namespaces and the relay between them.
pub struct Network {
    names: Vec<String>,
    pub counts: Arc<Counts>,
    threads: Vec<JoinHandle<()>>,
}

/// Datagrams that are sent at once to measure the network.
const PORTION: usize = 50;
/// The largest packet of a TUN device with the usual MTU.
const LARGEST: usize = 1_500;

impl Network {
    /// Builds it. *Errors*: what the system does not allow.
    pub fn build(hosts: usize, weather: Weather) -> Result<Self, String> {
        // Tests that run at once have a network each.
        static BUILT: AtomicU64 = AtomicU64::new(0);
        let (process, number) = (std::process::id(), BUILT.fetch_add(1, Ordering::Relaxed));
        let names = (0..hosts).map(|host| format!("dtrain-{process}-{number}-{host}")).collect();
        let mut network = Self { names, counts: Arc::default(), threads: Vec::new() };
        let mut tuns = Vec::new();
        for host in 0..hosts {
            tuns.push(network.add_host(host)?);
        }
        let (packets, queue) = channel();
        for (host, tun) in tuns.iter().enumerate() {
            let tun = tun.try_clone().map_err(|error| error.to_string())?;
            let (packets, counts) = (packets.clone(), Arc::clone(&network.counts));
            let rng = super::Rng(weather.seed ^ (host as u64 + 1));
            network.threads.push(std::thread::spawn(move || take_in(tun, weather, rng, &packets, &counts)));
        }
        drop(packets);
        network.threads.push(std::thread::spawn(move || hand_out(tuns, &queue)));
        Ok(network)
    }

    /// Names the hosts, in an `/etc/hosts` that every one of them sees.
    pub fn name_hosts(&self, names: &[impl AsRef<str>]) {
        let lines = names
            .iter()
            .enumerate()
            .map(|(host, name)| format!("{} {}\n", Self::address(host), name.as_ref()));
        let text = "127.0.0.1 localhost\n".to_owned() + &lines.collect::<String>();
        for host in 0..self.names.len() {
            let folder = self.names_of(host);
            std::fs::create_dir_all(&folder).expect("a folder");
            std::fs::write(folder.join("hosts"), &text).expect("a file");
        }
    }

    /// What `ip netns exec` lays over `/etc` there.
    fn names_of(&self, host: usize) -> PathBuf {
        Path::new("/etc/netns").join(&self.names[host])
    }

    /// The processes of a host.
    pub fn pids(&self, host: usize) -> Vec<u32> {
        let listed =
            Command::new("ip").args(["netns", "pids", &self.names[host]]).output().expect("ip is there");
        String::from_utf8_lossy(&listed.stdout).lines().filter_map(|pid| pid.trim().parse().ok()).collect()
    }

    /// The address of a host.
    pub fn address(host: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, host as u8 + 1)
    }

    fn add_host(&self, host: usize) -> Result<File, String> {
        let name = &self.names[host];
        ip(&format!("netns add {name}"))?;
        let tun = self.inside(host, open_tun)?.map_err(|error| format!("/dev/net/tun: {error}"))?;
        ip(&format!("-n {name} link set lo up"))?;
        ip(&format!("-n {name} address add {}/24 dev relay", Self::address(host)))?;
        ip(&format!("-n {name} link set relay up"))?;
        Ok(tun)
    }

    /// Runs `work` in the namespace of a host.
    pub fn inside<T: Send>(&self, host: usize, work: impl FnOnce() -> T + Send) -> Result<T, String> {
        let path = format!("/var/run/netns/{}", self.names[host]);
        // A thread of its own: it stays where it went.
        std::thread::scope(|scope| {
            let there = scope.spawn(|| {
                let namespace = File::open(&path).map_err(|error| format!("{path}: {error}"))?;
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                    .map_err(|error| format!("setns: {error}"))?;
                Ok(work())
            });
            there.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// The same command, in the namespace of a host.
    pub fn command(&self, host: usize, command: &Command) -> Command {
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", &self.names[host]]).arg(command.get_program());
        inside.args(command.get_args()).stdin(Stdio::null()).process_group(0);
        if let Some(folder) = command.get_current_dir() {
            inside.current_dir(folder);
        }
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }

    /// Takes a host off the network, or brings it back.
    pub fn set_link(&self, host: usize, state: &str) {
        ip(&format!("-n {} link set relay {state}", self.names[host])).expect("the link can be set");
    }

    /// Sends `count` datagrams from one host to another and back; the shortest round trip, and how many came back.
    pub fn ping(&self, from: usize, to: usize, count: u64) -> (Duration, u64) {
        let bind = |host: usize| {
            let bound = self.inside(host, move || UdpSocket::bind((Self::address(host), 0)));
            let socket = bound.expect("a namespace").expect("a socket");
            socket.set_read_timeout(Some(Duration::from_secs(2))).expect("a time");
            socket
        };
        let (ours, theirs) = (bind(from), bind(to));
        ours.set_read_timeout(Some(Duration::from_millis(300))).expect("a time");
        let there = theirs.local_addr().expect("it is bound");
        let echo = std::thread::spawn(move || {
            let mut buffer = [0; 16];
            // It ends when nothing has come for a while.
            while let Ok((length, back)) = theirs.recv_from(&mut buffer) {
                let _ = theirs.send_to(&buffer[..length], back);
            }
        });
        let begun = Instant::now();
        let (mut shortest, mut back) = (Duration::MAX, 0);
        let mut buffer = [0; 8];
        // In portions, so that no buffer of the system overflows: only the relay drops.
        for portion in (0..count).step_by(PORTION).map(|at| (count - at).min(PORTION as u64)) {
            for _ in 0..portion {
                let now = begun.elapsed().as_nanos() as u64;
                ours.send_to(&now.to_le_bytes(), there).expect("a way there");
            }
            while let Ok((8, _)) = ours.recv_from(&mut buffer) {
                let sent = Duration::from_nanos(u64::from_le_bytes(buffer));
                shortest = shortest.min(begun.elapsed() - sent);
                back += 1;
            }
        }
        echo.join().expect("the echo does not panic");
        (shortest, back)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for (host, name) in self.names.iter().enumerate() {
            let _ = std::fs::remove_dir_all(self.names_of(host));
            // A device that is gone ends the thread that reads it; parts that were never made are not there.
            let _ = ip(&format!("-n {name} link delete relay"));
            let _ = ip(&format!("netns delete {name}"));
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let done = Command::new("ip").args(arguments.split(' ')).output();
    let done = done.map_err(|error| format!("ip {arguments}: {error}"))?;
    let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    if done.status.success() { Ok(()) } else { Err(format!("ip {arguments}: {said}")) }
}

/// The request of `TUNSETIFF`: a name, then flags, then room.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: u16,
    room: [u8; 22],
}

/// `_IOW('T', 202, int)`.
const TUNSETIFF: rustix::ioctl::Opcode = 0x4004_54ca;
/// `IFF_TUN`: packets without a link header. `IFF_NO_PI`: and nothing before them.
const PLAIN_PACKETS: u16 = 0x0001 | 0x1000;

/// Makes the device `relay` in the namespace of this thread; its other end.
fn open_tun() -> std::io::Result<File> {
    let tun = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    let mut request = Request { name: [0; 16], flags: PLAIN_PACKETS, room: [0; 22] };
    request.name[..5].copy_from_slice(b"relay");
    // SAFETY: TUNSETIFF reads a `struct ifreq`, 40 bytes that begin with a name and flags; `Request` has this layout.
    unsafe { ioctl(&tun, Setter::<TUNSETIFF, Request>::new(request))? };
    Ok(tun)
}

/// A packet on its way: when it arrives, and where.
type Travelling = (Instant, usize, Vec<u8>);

fn take_in(
    mut tun: File,
    weather: Weather,
    mut rng: super::Rng,
    packets: &Sender<Travelling>,
    counts: &Counts,
) {
    let mut packet = vec![0; LARGEST];
    while let Ok(length) = tun.read(&mut packet) {
        // IPv4, to one of ours: the last byte of the destination names the host.
        if length < 20 || packet[0] >> 4 != 4 || packet[16..19] != [10, 77, 0] {
            continue;
        }
        counts.seen.fetch_add(1, Ordering::Relaxed);
        if rng.below(weather.one_in) == 0 {
            counts.dropped.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        let to = usize::from(packet[19]).wrapping_sub(1);
        if packets.send((Instant::now() + weather.delay, to, packet[..length].to_vec())).is_err() {
            return;
        }
    }
}

fn hand_out(mut tuns: Vec<File>, packets: &Receiver<Travelling>) {
    // All take equally long, so the first to come is the first to go.
    let mut way: VecDeque<Travelling> = VecDeque::new();
    loop {
        let wait = way
            .front()
            .map_or(Duration::from_secs(3600), |(at, ..)| at.saturating_duration_since(Instant::now()));
        match packets.recv_timeout(wait) {
            Ok(packet) => way.push_back(packet),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        while way.front().is_some_and(|(at, ..)| *at <= Instant::now()) {
            let (_, to, packet) = way.pop_front().expect("there is one");
            if let Some(tun) = tuns.get_mut(to) {
                // A host whose link is down takes no packets.
                let _ = tun.write(&packet);
            }
        }
    }
}
