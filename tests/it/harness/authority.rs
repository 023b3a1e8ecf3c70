//! A certificate authority of the test's own: whom it signs is trusted by those who are told to trust it.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use super::Directory;

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    directory: Directory,
}

impl Authority {
    pub fn new() -> Self {
        let key = KeyPair::generate().expect("a key can be made");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("it can sign");
        let directory = Directory::create();
        fs::write(directory.path().join("ca.pem"), certificate.pem()).expect("a file can be written");
        Self { issuer: Issuer::new(params, key), directory }
    }

    /// Its own certificate: what `SSL_CERT_FILE` names.
    pub fn file(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// A server of this name.
    pub fn acceptor(&self, host: &str) -> TlsAcceptor {
        let key = KeyPair::generate().expect("a key can be made");
        let params = CertificateParams::new([host.to_owned()]).expect("it is a name");
        let certificate = params.signed_by(&key, &self.issuer).expect("it can sign");
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("it is a key");
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has them")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("the key is the certificate's");
        Arc::new(config).into()
    }
}
