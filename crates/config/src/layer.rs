//! The settings of one source: the configuration file, or the options of the command line.

use crate::{
    ConfigError, ConfigResult, Ecc, IoEngine, KeeperMode, Listen, LogLevel, MemorySetting, Mistake,
    TlsMode, UpsOptions, VolumeSpec, Workers,
};
use std::{collections::HashSet, fmt, path::PathBuf};

/// The settings of one source. A setting that the source does not set is `None` or empty.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Settings {
    /// Memory for the cache.
    pub memory: Option<MemorySetting>,
    /// The NBD listeners.
    pub nbd: Vec<Listen>,
    /// The directory of the control socket and the lock.
    pub state: Option<PathBuf>,
    /// Threads of the data path.
    pub workers: Option<Workers>,
    /// The I/O engine for files and sockets.
    pub io: Option<IoEngine>,
    /// The keeper of the pool's memory.
    pub keeper: Option<KeeperMode>,
    /// Detection and correction of memory errors.
    pub ecc: Option<Ecc>,
    /// The log level.
    pub log: Option<LogLevel>,
    /// Whether connections are encrypted.
    pub tls: Option<TlsMode>,
    /// The server's certificate chain, PEM.
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM.
    pub tls_key: Option<PathBuf>,
    /// The authority of the clients' certificates, PEM.
    pub tls_client_ca: Option<PathBuf>,
    /// The UPSes that bridge a power failure.
    pub ups: UpsOptions,
    /// The vault, which takes dirty data when the battery runs low.
    pub vault: Option<String>,
    /// The volumes to serve.
    pub volumes: Vec<VolumeSpec>,
}

impl Settings {
    /// Overrides the settings of `below`. Listeners come from one source or the other; the volumes
    /// of both are served.
    ///
    /// # Errors
    /// Both have a volume of the same name.
    pub fn over(self, below: Self) -> ConfigResult<Self> {
        let mut volumes = below.volumes;
        volumes.extend(self.volumes);
        check_unique(&volumes)?;
        Ok(Self {
            memory: self.memory.or(below.memory),
            nbd: if self.nbd.is_empty() { below.nbd } else { self.nbd },
            state: self.state.or(below.state),
            workers: self.workers.or(below.workers),
            io: self.io.or(below.io),
            keeper: self.keeper.or(below.keeper),
            ecc: self.ecc.or(below.ecc),
            log: self.log.or(below.log),
            tls: self.tls.or(below.tls),
            tls_cert: self.tls_cert.or(below.tls_cert),
            tls_key: self.tls_key.or(below.tls_key),
            tls_client_ca: self.tls_client_ca.or(below.tls_client_ca),
            ups: self.ups.over(below.ups),
            vault: self.vault.or(below.vault),
            volumes,
        })
    }
}

/// Checks that no two volumes have the same name.
pub(crate) fn check_unique(volumes: &[VolumeSpec]) -> ConfigResult<()> {
    let mut names = HashSet::new();
    match volumes.iter().find(|volume| !names.insert(&volume.name)) {
        Some(volume) => Err(duplicate_name(&volume.name)),
        None => Ok(()),
    }
}

/// The error for a second volume of the same name.
pub(crate) fn duplicate_name(name: &str) -> ConfigError {
    ConfigError::new(
        Mistake::Duplicate,
        format!("two volumes are called '{name}'"),
        "give one of them another name, as in NAME=BACKING",
    )
}

impl fmt::Display for Settings {
    /// An equivalent configuration file, without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |text: String| toml::Value::String(text).to_string();
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        for (key, value) in [
            ("memory", self.memory.map(|value| value.to_string())),
            ("state", path(&self.state)),
            ("workers", self.workers.map(|value| value.to_string())),
            ("io", self.io.map(|value| value.to_string())),
            ("keeper", self.keeper.map(|value| value.to_string())),
            ("ecc", self.ecc.map(|value| value.to_string())),
            ("log", self.log.map(|value| value.to_string())),
            ("tls", self.tls.map(|value| value.to_string())),
            ("tls-cert", path(&self.tls_cert)),
            ("tls-key", path(&self.tls_key)),
            ("tls-client-ca", path(&self.tls_client_ca)),
            ("vault", self.vault.clone()),
        ]
        .into_iter()
        .chain(self.ups.pairs())
        {
            if let Some(value) = value {
                writeln!(f, "{key} = {}", text(value))?;
            }
        }
        if !self.nbd.is_empty() {
            let listeners: Vec<_> = self.nbd.iter().map(|nbd| text(nbd.to_string())).collect();
            writeln!(f, "nbd = [{}]", listeners.join(", "))?;
        }
        if !self.ups.upses.is_empty() {
            let upses = self.ups.upses.iter().map(|ups| text(ups.to_string()));
            let upses: Vec<_> = upses.collect();
            writeln!(f, "ups = [{}]", upses.join(", "))?;
        }
        for volume in &self.volumes {
            writeln!(f, "\n[[volume]]\nname = {}", text(volume.name.clone()))?;
            writeln!(f, "backing = {}", text(volume.backing.clone()))?;
            for (key, value) in volume.settings().pairs() {
                writeln!(f, "{key} = {}", text(value))?;
            }
        }
        Ok(())
    }
}
