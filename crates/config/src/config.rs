//! The complete configuration: options over file over defaults, checked, and reloaded on demand.

use crate::{
    BackgroundMode, CacheRatio, ConfigChange, ConfigError, ConfigResult, Ecc, IoEngine, KeeperMode,
    Listen, LogLevel, MemorySettings, MetricsAddress, Mistake, PollingMode, Settings, SiteSettings,
    SocketDirectory, TcpAddress, TlsSettings, UpsSettings, VolumeSpec, Workers,
    layer::{HAS_DEFAULT, check_unique},
    parse_toml,
    ups_settings::check_ups_named,
};
use forebay_types::{Action, PoolShare, Remedy, ShareSum, limits};
use std::{
    env, fs, mem,
    path::{Path, PathBuf},
};

/// The name of the control socket in the state directory.
pub const CONTROL_SOCKET: &str = "control.sock";
/// The name of the default NBD socket in the state directory.
pub const NBD_SOCKET: &str = "nbd.sock";

/// The sources of the settings, kept for a reload.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SettingsSource {
    /// The configuration file.
    pub file: Option<PathBuf>,
    /// The options of the command line.
    pub options: Settings,
    /// The state directory if neither file nor options set one, see [`default_state`].
    pub state_default: Option<PathBuf>,
}

impl SettingsSource {
    /// Reads the file, if there is one, and overrides it by the options.
    ///
    /// # Errors
    /// The file cannot be read, or the settings are invalid.
    pub fn load(&self) -> ConfigResult<Config> {
        let below = self.file.as_deref().map(read_file).transpose()?.unwrap_or_default();
        let config = Config::new(self.options.clone().over(below)?, self.clone());
        config.map_err(|error| if self.file.is_some() { error.for_file() } else { error })
    }
}

/// The checked configuration of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Memory for the cache, and for the system.
    pub memory: MemorySettings,
    /// How the pool is divided between reads and writes.
    pub cache_ratio: CacheRatio,
    /// The NBD listeners, at least one.
    pub nbd: Vec<Listen>,
    /// Where virtual machine monitors connect; `None` if they cannot.
    pub vhost_user: Option<SocketDirectory>,
    /// The address at which metrics are served.
    pub metrics: Option<MetricsAddress>,
    /// The address of the dashboard; `None` without one.
    pub dashboard: Option<TcpAddress>,
    /// The token file of the dashboard.
    pub dashboard_tokens: Option<PathBuf>,
    /// The other servers that this one watches.
    pub site: SiteSettings,
    /// The directory of the control socket and the lock.
    pub state: PathBuf,
    /// The volumes to serve, in the given order. May be empty: volumes can be added later.
    pub volumes: Vec<VolumeSpec>,
    /// Threads of the data path.
    pub workers: Workers,
    /// The I/O engine for files and sockets.
    pub io: IoEngine,
    /// The keeper of the pool's memory.
    pub keeper: KeeperMode,
    /// Detection and correction of memory errors.
    pub ecc: Ecc,
    /// Whether workers look for requests before they sleep.
    pub polling: PollingMode,
    /// How background work uses processors and disks.
    pub background: BackgroundMode,
    /// Encryption of connections.
    pub tls: TlsSettings,
    /// The UPSes that bridge a power failure.
    pub ups: UpsSettings,
    /// The vault, which takes dirty data when the battery runs low.
    pub vault: Option<String>,
    /// The log level.
    pub log: LogLevel,
    /// All settings but the volumes, for [`crate::diff`]. Defaults are filled in.
    pub(crate) settings: Settings,
    source: SettingsSource,
}

impl Config {
    fn new(given: Settings, source: SettingsSource) -> ConfigResult<Self> {
        let tls = TlsSettings::checked(&given)?;
        check_ups_named(&given)?;
        let mut settings = given.over(Settings::defaults())?;
        let volumes = mem::take(&mut settings.volumes);
        let state = settings.state.or_else(|| source.state_default.clone()).ok_or_else(|| {
            ConfigError::new(
                Mistake::Value,
                "no state directory: this user is not root, and XDG_RUNTIME_DIR is not set",
                Action::set("state", "DIR"),
            )
        })?;
        // Check now, so that a path too long for the control socket is reported before the start.
        Listen::unix(state.join(CONTROL_SOCKET))?;
        if settings.nbd.is_empty() {
            settings.nbd = vec![Listen::unix(state.join(NBD_SOCKET))?];
        }
        settings.state = Some(state.clone());
        check_listeners(&settings.nbd)?;
        if settings.dashboard.is_none() && settings.dashboard_tokens.is_some() {
            let message = "dashboard-tokens is set, but there is no dashboard";
            let remedy = Action::set("dashboard", "HOST:PORT");
            return Err(ConfigError::new(Mistake::Value, message, remedy));
        }
        let site = SiteSettings::checked(&settings)?;
        let memory = MemorySettings {
            memory: settings.memory.expect(HAS_DEFAULT),
            min: settings.memory_min.expect(HAS_DEFAULT),
            max: settings.memory_max.expect(HAS_DEFAULT),
            reserve: settings.memory_reserve.expect(HAS_DEFAULT),
        };
        memory.check()?;
        let ups = UpsSettings::checked(&settings)?;
        check_vault(settings.vault.as_deref(), &volumes)?;
        check_volumes(&volumes, &tls)?;
        let has_vault = settings.vault.is_some();
        volumes.iter().try_for_each(|volume| volume.check_ups(&ups.upses, has_vault))?;
        Ok(Self {
            memory,
            cache_ratio: settings.cache_ratio.expect(HAS_DEFAULT),
            nbd: settings.nbd.clone(),
            vhost_user: settings.vhost_user.clone(),
            metrics: settings.metrics,
            dashboard: settings.dashboard.clone(),
            dashboard_tokens: settings.dashboard_tokens.clone(),
            site,
            state,
            volumes,
            workers: settings.workers.expect(HAS_DEFAULT),
            io: settings.io.expect(HAS_DEFAULT),
            keeper: settings.keeper.expect(HAS_DEFAULT),
            ecc: settings.ecc.expect(HAS_DEFAULT),
            polling: settings.polling.expect(HAS_DEFAULT),
            background: settings.background.expect(HAS_DEFAULT),
            tls,
            ups,
            vault: settings.vault.clone(),
            log: settings.log.expect(HAS_DEFAULT),
            settings,
            source,
        })
    }

    /// Reads the file again and overrides it by the same options, for SIGHUP. [`crate::diff`]
    /// compares the old and the new configuration.
    ///
    /// # Errors
    /// As [`SettingsSource::load`]; this configuration stays unchanged.
    pub fn reload(&self) -> ConfigResult<Self> {
        let mut new = self.source.load()?;
        if new.nbd == [Listen::unix(new.state.join(NBD_SOCKET))?] {
            // The default is in the state directory, which needs a restart.
            new.nbd = vec![Listen::unix(self.state.join(NBD_SOCKET))?];
            new.settings.nbd.clone_from(&new.nbd);
        }
        Ok(new)
    }

    /// Takes over the settings of a reload that can change at run time. Other settings keep their
    /// effective values, so that each reload until the restart reports them. Changes in `failed`
    /// are not taken over either, so that the next reload repeats them.
    pub fn apply_live(
        &mut self,
        new: Self,
        failed: &[ConfigChange],
        is_served: impl Fn(&str) -> bool,
    ) {
        let mut volumes = new.volumes;
        for change in failed {
            let (name, is_served) = match change {
                ConfigChange::VolumeRemoved { name } => (name, is_served(name)),
                ConfigChange::VolumeReplaced { new } => (&new.name, is_served(&new.name)),
                ConfigChange::VolumeChanged { name, .. } if is_served(name) => (name, true),
                ConfigChange::VolumeAdded { new } if !is_served(&new.name) => (&new.name, false),
                // A command has removed or added the volume, which persists.
                _ => continue,
            };
            volumes.retain(|volume| volume.name != *name);
            if is_served {
                volumes.extend(self.volumes.iter().filter(|volume| volume.name == *name).cloned());
            }
        }
        self.volumes = volumes;
        self.log = new.log;
        self.settings.log = new.settings.log;
        (self.nbd, self.settings.nbd) = (new.nbd, new.settings.nbd);
        (self.vhost_user, self.settings.vhost_user) = (new.vhost_user, new.settings.vhost_user);
        (self.metrics, self.settings.metrics) = (new.metrics, new.settings.metrics);
        (self.dashboard, self.settings.dashboard) = (new.dashboard, new.settings.dashboard);
        self.dashboard_tokens = new.dashboard_tokens;
        self.settings.dashboard_tokens = new.settings.dashboard_tokens;
        (self.site, self.settings.site) = (new.site, new.settings.site);
        self.settings.site_ca = new.settings.site_ca;
        (self.tls, self.settings.tls) = (new.tls, new.settings.tls);
        self.settings.tls_cert = new.settings.tls_cert;
        self.settings.tls_key = new.settings.tls_key;
        self.settings.tls_client_ca = new.settings.tls_client_ca;
        if !failed.iter().any(|change| matches!(change, ConfigChange::Server { .. })) {
            self.memory = new.memory;
            self.settings.memory = new.settings.memory;
            self.settings.memory_min = new.settings.memory_min;
            self.settings.memory_max = new.settings.memory_max;
            self.settings.memory_reserve = new.settings.memory_reserve;
            self.cache_ratio = new.cache_ratio;
            self.settings.cache_ratio = new.settings.cache_ratio;
            self.background = new.background;
            self.settings.background = new.settings.background;
        }
    }
}

/// Reads a configuration file.
///
/// # Errors
/// The file cannot be read, or [`parse_toml`] refuses it.
pub fn read_file(path: &Path) -> ConfigResult<Settings> {
    let name = path.display().to_string();
    let text = fs::read_to_string(path).map_err(|error| {
        ConfigError::new(
            Mistake::Unreadable,
            format!("configuration file {name} cannot be read"),
            Remedy::from(Action::NameConfiguration).or("do without one"),
        )
        .because(error)
    })?;
    parse_toml(&text, &name)
}

/// The default state directory: `/run/forebay` for root, otherwise `forebay` in the user's runtime
/// directory. `None` for a user without one.
pub fn default_state(is_root: bool) -> Option<PathBuf> {
    if is_root {
        return Some("/run/forebay".into());
    }
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)?;
    runtime.is_absolute().then(|| runtime.join("forebay"))
}

fn check_listeners(listeners: &[Listen]) -> ConfigResult<()> {
    let listed = listeners.iter().enumerate();
    let mut repeated = listed.filter(|(at, one)| listeners[..*at].iter().any(|it| it.is_at(one)));
    match repeated.next() {
        Some((_, listen)) => Err(ConfigError::new(
            Mistake::Duplicate,
            format!("listener {listen} is given twice"),
            "keep one of them",
        )),
        None => Ok(()),
    }
}

/// A vault is overwritten from its first byte on, so it must have no other use.
fn check_vault(vault: Option<&str>, volumes: &[VolumeSpec]) -> ConfigResult<()> {
    let Some(vault) = vault else { return Ok(()) };
    let fail = |mistake, message| {
        let remedy = Remedy::from("name a file or device without another use as the vault");
        Err(ConfigError::new(mistake, message, remedy))
    };
    if vault.is_empty() || vault.chars().any(char::is_control) {
        let message = format!("vault name {vault:?} is empty or contains a control character");
        return fail(Mistake::Value, message);
    }
    let uses_vault = |volume: &&VolumeSpec| {
        let journals = [&volume.config.journal, &volume.config.journal_mirror];
        volume.backing == vault || journals.iter().any(|it| it.as_deref() == Some(vault))
    };
    match volumes.iter().find(uses_vault) {
        Some(volume) => {
            let name = &volume.name;
            let message =
                format!("the vault {vault} is also the backing or journal of volume '{name}'");
            fail(Mistake::Duplicate, message)
        }
        None => Ok(()),
    }
}

/// The guaranteed shares of all volumes must leave room for the others.
fn check_shares(volumes: &[VolumeSpec]) -> ConfigResult<()> {
    let shares = volumes
        .iter()
        .map(|volume| (volume.name.as_str(), PoolShare::of_config(&volume.config).min_percent()));
    ShareSum::of(shares)
        .check()
        .map_err(|sum| ConfigError::new(Mistake::Limit, sum.to_string(), sum.remedy()))
}

fn check_volumes(volumes: &[VolumeSpec], tls: &TlsSettings) -> ConfigResult<()> {
    check_unique(volumes)?;
    if volumes.len() > limits::VOLUMES_MAX {
        return Err(ConfigError::new(
            Mistake::Limit,
            format!("{} volumes exceed the limit of {}", volumes.len(), limits::VOLUMES_MAX),
            "serve some of them with a second forebay, which needs its own state directory",
        ));
    }
    check_shares(volumes)?;
    volumes.iter().try_for_each(|volume| volume.check_tls(tls.mode))
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
