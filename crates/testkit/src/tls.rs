//! Whom does a TLS test trust?
//!
//! A certificate authority made for one server and thrown away with it. Three pairs are signed by it: the server's (for
//! `localhost` and 127.0.0.1), a client's, and nothing else. A second [`Certificates`] is the wrong authority for the
//! test that must refuse it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

/// The PEM files of one throw-away authority.
#[derive(Debug, Clone)]
pub struct Certificates {
    /// The authority's certificate: what a client trusts.
    pub ca: PathBuf,
    /// The server's certificate.
    pub server_cert: PathBuf,
    /// The server's private key.
    pub server_key: PathBuf,
    /// A client's certificate, common name `syncguard`.
    pub client_cert: PathBuf,
    /// The client's private key.
    pub client_key: PathBuf,
}

impl Certificates {
    /// Makes an authority and writes its five files into `folder`.
    ///
    /// # Errors
    ///
    /// When a file cannot be written.
    pub fn create(folder: &Path) -> Result<Self> {
        let files = Self {
            ca: folder.join("ca.pem"),
            server_cert: folder.join("server.pem"),
            server_key: folder.join("server.key"),
            client_cert: folder.join("client.pem"),
            client_key: folder.join("client.key"),
        };
        let authority = authority(&files.ca)?;
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
        let server = ExtendedKeyUsagePurpose::ServerAuth;
        sign(&authority, "localhost", names, server, &files.server_cert, &files.server_key)?;
        let client = ExtendedKeyUsagePurpose::ClientAuth;
        sign(&authority, "syncguard", Vec::new(), client, &files.client_cert, &files.client_key)?;
        Ok(files)
    }
}

fn authority(file: &Path) -> Result<Issuer<'static, KeyPair>> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "SyncGuard test authority");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate()?;
    fs::write(file, params.self_signed(&key)?.pem())?;
    Ok(Issuer::new(params, key))
}

fn sign(
    authority: &Issuer<'static, KeyPair>,
    common_name: &str,
    names: Vec<String>,
    purpose: ExtendedKeyUsagePurpose,
    cert_file: &Path,
    key_file: &Path,
) -> Result<()> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.use_authority_key_identifier_extension = true;
    params.key_usages.push(KeyUsagePurpose::DigitalSignature);
    params.extended_key_usages.push(purpose);
    let key = KeyPair::generate()?;
    fs::write(cert_file, params.signed_by(&key, authority)?.pem())?;
    fs::write(key_file, key.serialize_pem())?;
    // PostgreSQL and libpq refuse a key that others may read.
    fs::set_permissions(key_file, fs::Permissions::from_mode(0o600))?;
    Ok(())
}
