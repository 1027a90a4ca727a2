//! How does the emulator look behind TLS, as the real service is?

use std::sync::Arc;

use syncguard_testkit::tls::Certificates;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Ends TLS in front of a plain address and returns the https URL.
pub async fn in_front_of(address: String, certificates: &Certificates) -> String {
    let chain = vec![CertificateDer::from_pem_file(&certificates.server_cert).unwrap()];
    let key = PrivateKeyDer::from_pem_file(&certificates.server_key).unwrap();
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (acceptor, address) = (acceptor.clone(), address.clone());
            tokio::spawn(async move {
                // A client that does not trust us hangs up here.
                let Ok(mut client) = acceptor.accept(client).await else { return };
                let mut server = TcpStream::connect(address).await.unwrap();
                let _ = copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    format!("https://localhost:{port}")
}
