//! Who may talk to whom: one certificate authority, derived from the shared token.
//!
//! Every host that has the token derives the same key of the authority, and every process signs a fresh certificate for
//! a key of its own with it. Both ends of a link demand such a certificate in the handshake, so of whoever lacks the
//! token no application byte is ever read. There is no early data and no resumption, so a recorded join cannot be played
//! again. This file does not know sockets, and it never writes a key anywhere. See decision 0014.

use super::Token;
use super::token::fill_random;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ED25519, SerialNumber,
};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The name in every certificate. Hosts are told apart by the addresses they are reached at, not by this.
pub(super) const SERVER_NAME: &str = "dtrain.internal";
/// What both ends must speak.
pub(super) const ALPN: &[u8] = b"dtrain/1";
/// What the authority's key is derived for. Another text makes another authority.
const PURPOSE: &str = "dtrain 2026-11 certificate authority Ed25519 seed";
/// An Ed25519 private key as PKCS#8 is this, then its 32 bytes (RFC 8410, section 7).
const PKCS8_PREFIX: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
const DAY: Duration = Duration::from_secs(86_400);

/// From when to when a certificate is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValidityWindow {
    /// The first moment.
    pub from: SystemTime,
    /// The last moment.
    pub until: SystemTime,
}

impl ValidityWindow {
    /// What a process signs for itself at its start: a day back, for hosts whose clocks differ, and 400 days on, for the
    /// longest run. A link that is made later than that needs a restart of the process.
    #[must_use]
    pub fn around(now: SystemTime) -> Self {
        Self { from: now - DAY, until: now + 400 * DAY }
    }
}

/// Why there is no identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The window is empty or before 1970.
    #[error("a certificate cannot be valid from {from:?} until {until:?}")]
    Window {
        /// Its start.
        from: SystemTime,
        /// Its end.
        until: SystemTime,
    },
    /// The libraries for certificates refused.
    #[error("cannot make a certificate: {what}")]
    Certificate {
        /// What they said.
        what: String,
    },
}

impl IdentityError {
    fn because(error: impl fmt::Display) -> Self {
        Self::Certificate { what: error.to_string() }
    }
}

/// What a process proves itself with, and what it demands of others.
#[derive(Clone)]
pub struct Identity {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Identity {
    /// Signs a fresh certificate for a fresh key. *Errors*: [`IdentityError`].
    pub fn from_token(token: &Token, window: ValidityWindow) -> Result<Self, IdentityError> {
        let authority = Authority::from_token(token)?;
        let (certificate, key) = authority.sign(window)?;
        let chain = || vec![certificate.clone()];
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let roots = Arc::new(authority.roots()?);
        Ok(Self {
            client: Arc::new(client_config(provider.clone(), roots.clone(), chain(), key.clone_key())?),
            server: Arc::new(server_config(provider, roots, chain(), key)?),
        })
    }

    pub(super) fn client(&self) -> Arc<ClientConfig> {
        self.client.clone()
    }

    pub(super) fn server(&self) -> Arc<ServerConfig> {
        self.server.clone()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(secret)")
    }
}

/// The authority that everyone with the token is.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

impl Authority {
    fn from_token(token: &Token) -> Result<Self, IdentityError> {
        let mut pkcs8 = PKCS8_PREFIX.to_vec();
        pkcs8.extend_from_slice(&token.derive(PURPOSE));
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&PrivatePkcs8KeyDer::from(pkcs8), &PKCS_ED25519)
            .map_err(IdentityError::because)?;
        let mut params = CertificateParams::default();
        // The name is a hash of the public key: a certificate of another token then comes from an unknown issuer, which
        // says more than a bad signature.
        params.distinguished_name = name(&blake3::hash(key.public_key_raw()).to_hex()[..16]);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = params.self_signed(&key).map_err(IdentityError::because)?.der().clone();
        Ok(Self { issuer: Issuer::new(params, key), certificate })
    }

    fn roots(&self) -> Result<RootCertStore, IdentityError> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).map_err(IdentityError::because)?;
        Ok(roots)
    }

    fn sign(
        &self,
        window: ValidityWindow,
    ) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), IdentityError> {
        let wrong = IdentityError::Window { from: window.from, until: window.until };
        let since_epoch = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_err(|_| wrong.clone());
        let (from, until) = (since_epoch(window.from)?, since_epoch(window.until)?);
        if from >= until {
            return Err(wrong);
        }
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(IdentityError::because)?;
        let names = vec![SERVER_NAME.to_owned()];
        let mut params = CertificateParams::new(names).map_err(IdentityError::because)?;
        params.distinguished_name = name("member");
        params.not_before = rcgen::date_time_ymd(1970, 1, 1) + from;
        params.not_after = rcgen::date_time_ymd(1970, 1, 1) + until;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        // A first byte between 64 and 127 is kept as it is, so that all certificates have one length: a simulated run
        // must not depend on the numbers drawn here.
        let mut serial = [0; 16];
        fill_random(&mut serial);
        serial[0] = serial[0] & 0x3f | 0x40;
        params.serial_number = Some(SerialNumber::from(serial.to_vec()));
        let certificate = params.signed_by(&key, &self.issuer).map_err(IdentityError::because)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        Ok((certificate.der().clone(), key))
    }
}

fn name(common: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "dtrain");
    name.push(DnType::CommonName, common);
    name
}

fn server_config(
    provider: Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, IdentityError> {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
        .build()
        .map_err(IdentityError::because)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(IdentityError::because)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(IdentityError::because)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(config)
}

fn client_config(
    provider: Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ClientConfig, IdentityError> {
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(IdentityError::because)?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(IdentityError::because)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    config.enable_early_data = false;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_token_makes_the_same_authority_and_another_one_another() {
        let token = Token::generate();
        let authority = |token: &Token| Authority::from_token(token).expect("an authority");
        let key = |authority: &Authority| authority.issuer.key().public_key_raw().to_vec();
        assert_eq!(key(&authority(&token)), key(&authority(&token)));
        assert_ne!(key(&authority(&token)), key(&authority(&Token::generate())));
    }

    #[test]
    fn certificates_of_one_window_have_one_length_and_different_keys() {
        let authority = Authority::from_token(&Token::generate()).expect("an authority");
        let window = ValidityWindow::around(UNIX_EPOCH + 20_000 * DAY);
        let made: Vec<_> = (0..50).map(|_| authority.sign(window).expect("signed")).collect();
        assert!(made.iter().all(|(certificate, _)| certificate.len() == made[0].0.len()));
        assert_ne!(made[0].1.secret_der(), made[1].1.secret_der());
    }

    #[test]
    fn an_empty_window_and_one_before_the_epoch_are_refused() {
        let token = Token::generate();
        let now = UNIX_EPOCH + 20_000 * DAY;
        for window in [
            ValidityWindow { from: now, until: now },
            ValidityWindow { from: now, until: now - DAY },
            ValidityWindow { from: UNIX_EPOCH - DAY, until: now },
        ] {
            let refused = Identity::from_token(&token, window);
            assert!(matches!(refused, Err(IdentityError::Window { .. })), "{window:?}");
        }
    }
}
