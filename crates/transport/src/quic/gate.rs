//! The gate of an endpoint: strangers knock here, and only so many at a time.
//!
//! A handshake costs memory and a signature, so it is bounded in number, per source and in time; under pressure a
//! stranger must first show that it receives at the address it claims, which costs us one packet and no memory. What is
//! turned away is counted, and told once per kind. It does not know what a link is for: past the gate everyone has the token.

use super::error::{Refusal, words};
use super::{Connection, Tuning};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How often each kind of refusal happened at an endpoint.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    counts: [AtomicU64; Refusal::ALL.len()],
    retries: AtomicU64,
}

impl Refusals {
    fn note(&self, why: Refusal, source: SocketAddr, detail: &str) {
        let place = Refusal::ALL.iter().position(|kind| *kind == why).expect("all kinds are listed");
        // Once a kind: ten thousand strangers must not fill the log of a run that they do not disturb.
        if self.counts[place].fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(%source, why = %why, detail, "refused a link; more of this kind are only counted");
        }
    }

    pub fn counts(&self) -> BTreeMap<Refusal, u64> {
        let count = |place: usize| self.counts[place].load(Ordering::Relaxed);
        let all = Refusal::ALL.iter().enumerate().map(|(place, why)| (*why, count(place)));
        all.filter(|(_, count)| *count > 0).collect()
    }

    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }
}

/// The handshakes that go on, by where they come from.
#[derive(Debug, Default)]
struct Visitors {
    by_source: BTreeMap<IpAddr, usize>,
    all: usize,
}

/// What is known of where an attempt comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Address {
    /// It answered there.
    Proven,
    /// It says so.
    Claimed,
}

/// What to do with an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    Granted,
    ProveAddress,
    Refused,
}

impl Visitors {
    fn judge(&self, source: IpAddr, address: Address, tuning: &Tuning) -> Admission {
        if self.all >= tuning.retry_from && address == Address::Claimed {
            return Admission::ProveAddress;
        }
        let here = self.by_source.get(&source).copied().unwrap_or(0);
        if self.all >= tuning.most_half_open || here >= tuning.most_half_open_per_source {
            return Admission::Refused;
        }
        Admission::Granted
    }

    fn enter(&mut self, source: IpAddr) {
        *self.by_source.entry(source).or_default() += 1;
        self.all += 1;
    }

    fn leave(&mut self, source: IpAddr) {
        self.all -= 1;
        let here = self.by_source.get_mut(&source).expect("it entered");
        *here -= 1;
        if *here == 0 {
            self.by_source.remove(&source);
        }
    }
}

/// One host as an attacker sees it: an IPv4 address, or the /64 that a single IPv6 host has for itself.
fn source_of(addr: SocketAddr) -> IpAddr {
    match addr.ip().to_canonical() {
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        ip => ip,
    }
}

/// Lets links in until the endpoint closes or nobody takes them any more.
///
/// A link that is not taken keeps its place among the handshakes, so their bound holds for these too.
pub(super) async fn keep(
    endpoint: quinn::Endpoint,
    tuning: Tuning,
    refusals: Arc<Refusals>,
    admitted: mpsc::Sender<Connection>,
) {
    let mut visitors = Visitors::default();
    let mut handshakes = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(done) = handshakes.join_next() => {
                // A handshake that panicked is a bug: it must not leave its place taken without a word.
                visitors.leave(done.expect("a handshake does not panic"));
            }
            incoming = endpoint.accept() => {
                let Some(incoming) = incoming else { return };
                let addr = incoming.remote_address();
                let source = source_of(addr);
                let address = match incoming.remote_address_validated() {
                    true => Address::Proven,
                    false => Address::Claimed,
                };
                match visitors.judge(source, address, &tuning) {
                    Admission::Granted => {
                        visitors.enter(source);
                        let (admitted, refusals) = (admitted.clone(), Arc::clone(&refusals));
                        handshakes.spawn(async move {
                            shake_hands(incoming, tuning, &refusals, &admitted).await;
                            source
                        });
                    }
                    Admission::ProveAddress => {
                        refusals.retries.fetch_add(1, Ordering::Relaxed);
                        // Who was asked already and still has not proven it is of no interest.
                        if let Err(error) = incoming.retry() {
                            error.into_incoming().refuse();
                        }
                    }
                    Admission::Refused => {
                        refusals.note(Refusal::Crowded, addr, "");
                        incoming.refuse();
                    }
                }
            }
        }
    }
}

async fn shake_hands(
    incoming: quinn::Incoming,
    tuning: Tuning,
    refusals: &Arc<Refusals>,
    admitted: &mpsc::Sender<Connection>,
) {
    let addr = incoming.remote_address();
    let shaken = async {
        let link = incoming.accept()?.await?;
        // The dialling side believes that the handshake is over before its certificate is looked at here, so it waits for
        // this byte. Whoever reads it was let in.
        let mut greeting = link.open_uni().await?;
        let _lost = greeting.write_all(&[super::connection::GREETING]).await;
        Ok::<_, quinn::ConnectionError>(link)
    };
    match timeout(tuning.handshake_timeout, shaken).await {
        // Nobody takes links any more: dropping it closes it.
        Ok(Ok(link)) => drop(admitted.send(Connection::new(link, tuning)).await),
        Ok(Err(error)) => refusals.note(Refusal::of(&error), addr, &words(&error)),
        Err(_) => refusals.note(Refusal::TooSlow, addr, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn under_pressure_an_address_must_be_proven_and_a_full_house_refuses() {
        let tuning =
            Tuning { most_half_open: 4, most_half_open_per_source: 2, retry_from: 1, ..Tuning::default() };
        let mut visitors = Visitors::default();
        let host = |last: u8| IpAddr::from([10, 0, 0, last]);
        assert_eq!(visitors.judge(host(1), Address::Claimed, &tuning), Admission::Granted);
        visitors.enter(host(1));
        assert_eq!(visitors.judge(host(2), Address::Claimed, &tuning), Admission::ProveAddress);
        visitors.enter(host(1));
        assert_eq!(
            visitors.judge(host(1), Address::Proven, &tuning),
            Admission::Refused,
            "two of one source"
        );
        assert_eq!(visitors.judge(host(2), Address::Proven, &tuning), Admission::Granted);
        visitors.enter(host(2));
        visitors.enter(host(3));
        assert_eq!(visitors.judge(host(4), Address::Proven, &tuning), Admission::Refused, "four in all");
        visitors.leave(host(1));
        assert_eq!(visitors.judge(host(4), Address::Proven, &tuning), Admission::Granted);
        visitors.leave(host(1));
        assert!(!visitors.by_source.contains_key(&host(1)), "what is gone is forgotten");
    }

    #[test]
    fn one_ipv6_host_is_one_source_and_a_mapped_address_is_its_ipv4_self() {
        let of = |text: &str| source_of(text.parse().expect("an address"));
        assert_eq!(of("[2001:db8::1]:5"), of("[2001:db8::ffff:2]:9"));
        assert_ne!(of("[2001:db8::1]:5"), of("[2001:db8:0:1::1]:5"));
        assert_eq!(of("[::ffff:10.0.0.1]:5"), of("10.0.0.1:7"));
    }
}
