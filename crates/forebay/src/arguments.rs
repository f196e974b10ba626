//! The arguments of the commands.
//!
//! `forebay_config` parses the values of all settings, for the command line as for the
//! configuration file, so that both accept the same values.

use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches, Subcommand};
use forebay_api::{TRACE_BYTES_MIN, TRACE_SECONDS_MAX};
use forebay_config::{
    ConfigResult, ServerChange, Settings, SettingsSource, VolumeSpec, default_state,
};
use forebay_terminal::units::seconds_with_unit;
use forebay_types::{PROGRAM_SETTINGS, Setting, Size, VOLUME_SETTINGS};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Selects a daemon.
#[derive(Args, Clone, Debug)]
pub(crate) struct StateArguments {
    /// State directory of the daemon [default: /run/forebay for root, else
    /// $XDG_RUNTIME_DIR/forebay]
    #[arg(
        long,
        value_name = "DIR",
        env = "FOREBAY_STATE",
        hide_env_values = true,
        value_parser = state_directory
    )]
    pub(crate) state: Option<PathBuf>,
}

/// Parses the state directory as the configuration file does.
fn state_directory(text: &str) -> ConfigResult<PathBuf> {
    let mut settings = Settings::default();
    settings.set("state", text)?;
    Ok(settings.state.expect("the setting was just set"))
}

/// Whether a command may disconnect clients.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ForceArguments {
    /// Disconnect clients, too; a file system in use is damaged like by a power failure
    #[arg(long)]
    pub(crate) force: bool,
}

/// Arguments of the commands that print a report.
#[derive(Args, Debug)]
pub(crate) struct ShowArguments {
    /// Print JSON, in the form of the control API
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) state: StateArguments,
}

/// Arguments of `forebay status`.
#[derive(Args, Debug)]
pub(crate) struct StatusArguments {
    /// Show this volume in depth
    pub(crate) name: Option<String>,
    /// Show everything: the server and each volume in depth
    #[arg(long, conflicts_with = "name")]
    pub(crate) all: bool,
    /// Show the hosts of the site that this server watches; with --all, their volumes, too
    #[arg(long, conflicts_with_all = ["name", "watch"])]
    pub(crate) site: bool,
    /// Exit with 3 if something does not work as configured, with 4 if requests fail or wait for
    /// a disk, or data is at risk
    #[arg(long, conflicts_with = "watch")]
    pub(crate) check: bool,
    /// Refresh every SECONDS until interrupted, with the rates of that interval [default: 2]
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        default_missing_value = "2",
        value_parser = watch_seconds,
        conflicts_with = "json"
    )]
    pub(crate) watch: Option<Duration>,
    /// Colors: auto (on a terminal, unless NO_COLOR is set), always or never
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = color_choice)]
    pub(crate) color: ColorChoice,
    #[command(flatten)]
    pub(crate) show: ShowArguments,
}

/// Arguments of `forebay top`.
#[derive(Args, Debug)]
pub(crate) struct TopArguments {
    /// Ask the server every SECONDS
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval_seconds)]
    pub(crate) interval: Duration,
    /// Colors: auto (unless NO_COLOR is set), always or never
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = color_choice)]
    pub(crate) color: ColorChoice,
    #[command(flatten)]
    pub(crate) state: StateArguments,
}

/// Arguments of `forebay clients`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ClientsArguments {
    #[command(subcommand)]
    pub(crate) command: Option<ClientsCommand>,
    #[command(flatten)]
    pub(crate) show: ShowArguments,
}

/// Subcommands of `forebay clients`.
#[derive(Debug, Subcommand)]
pub(crate) enum ClientsCommand {
    /// End one connection, without waiting for its requests
    Disconnect {
        /// The number of the client, from `forebay clients`
        #[arg(value_parser = client_number)]
        id: u64,
        #[command(flatten)]
        show: ShowArguments,
    },
}

fn client_number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| {
        format!("'{text}' is not the number of a client: `forebay clients` lists them")
    })
}

/// Arguments of `forebay trace`.
#[derive(Args, Debug)]
pub(crate) struct TraceArguments {
    /// The volumes' names
    #[arg(value_name = "VOLUME", required = true)]
    pub(crate) names: Vec<String>,
    /// File to write; must not exist
    #[arg(long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// How long, in seconds or with a unit, as in 90s, 30m or 12h
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = trace_time)]
    pub(crate) time: Duration,
    /// End before the file is larger than this
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = trace_size)]
    pub(crate) max_size: Size,
    /// Shuffle the regions of 1 GiB of each volume, by a random key that is not kept
    #[arg(long)]
    pub(crate) anonymize: bool,
    #[command(flatten)]
    pub(crate) state: StateArguments,
}

/// Parses the time of `trace`: 1 second to a week.
fn trace_time(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().or_else(|| seconds_with_unit(text));
    let seconds = seconds.filter(|seconds| (1..=TRACE_SECONDS_MAX).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| {
        format!("--time {text} is not a time of 1s to 7d: write it as in --time 90s, 30m or 12h")
    })
}

/// Parses the largest size of a trace.
fn trace_size(text: &str) -> Result<Size, String> {
    let size = text.parse().ok().filter(|size: &Size| size.bytes() >= TRACE_BYTES_MIN);
    size.ok_or_else(|| {
        format!("--max-size {text} is not a size of at least 4KiB: write it as in --max-size 1GiB")
    })
}

/// When output has colors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColorChoice {
    /// On a terminal, unless the environment asks for none.
    Auto,
    Always,
    Never,
}

fn color_choice(text: &str) -> Result<ColorChoice, String> {
    match text {
        "auto" => Ok(ColorChoice::Auto),
        "always" => Ok(ColorChoice::Always),
        "never" => Ok(ColorChoice::Never),
        _ => Err(format!("--color {text} is invalid: write auto, always or never")),
    }
}

/// Parses an interval of 0.1 to 86400 seconds.
fn seconds(text: &str) -> Option<Duration> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64)
}

/// Slow requests that a server keeps: 64 of each of 1,024 volumes.
const SLOW_MAX: usize = 65_536;

/// Parses the number of requests of `slow`.
pub(crate) fn last_requests(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=SLOW_MAX).contains(number));
    number.ok_or_else(|| format!("-n {text} is not a number of requests: write 1 to {SLOW_MAX}"))
}

/// Parses the interval of `top`.
fn interval_seconds(text: &str) -> Result<Duration, String> {
    seconds(text)
        .ok_or_else(|| format!("--interval {text} is not a number of seconds: write 0.1 to 86400"))
}

/// Parses the interval of `--watch`.
fn watch_seconds(text: &str) -> Result<Duration, String> {
    seconds(text).ok_or_else(|| {
        format!(
            "--watch {text} is not a number of seconds: write 0.1 to 86400, as in --watch 2, and \
             the name of a volume before --watch"
        )
    })
}

/// Arguments of `forebay pin`.
#[derive(Args, Debug)]
pub(crate) struct PinArguments {
    /// The volume's name
    pub(crate) name: String,
    /// Ranges, each as OFFSET+LENGTH in bytes or with a unit, as in 1GiB+256MiB, or all for the
    /// whole volume; or files, each as a path with a slash
    #[arg(value_name = "RANGE|FILE", required = true)]
    pub(crate) ranges: Vec<OsString>,
    /// Keep running, check every SECONDS where the files are, and unpin them on exit [default: 10]
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "10",
        value_parser = follow_seconds
    )]
    pub(crate) follow: Option<u64>,
    #[command(flatten)]
    pub(crate) state: StateArguments,
}

/// Parses the interval of `--follow`, in seconds.
fn follow_seconds(text: &str) -> Result<u64, String> {
    let seconds = text.parse().ok().filter(|seconds| (1..=86_400).contains(seconds));
    seconds.ok_or_else(|| {
        format!("--follow={text} is not a number of seconds: write 1 to 86400, as in --follow=10")
    })
}

/// Arguments of `forebay unpin`.
#[derive(Args, Debug)]
pub(crate) struct UnpinArguments {
    /// The volume's name
    pub(crate) name: String,
    /// Ranges or files, as for forebay pin
    #[arg(value_name = "RANGE|FILE", required = true)]
    pub(crate) ranges: Vec<OsString>,
    #[command(flatten)]
    pub(crate) state: StateArguments,
}

/// Arguments of `forebay serve`.
#[derive(Args, Debug)]
pub(crate) struct ServeArguments {
    /// Disks or files to serve, each under its file name without extension
    #[arg(value_name = "DISK", value_parser = VolumeSpec::from_disk)]
    disks: Vec<VolumeSpec>,

    /// Volume to serve: NAME=BACKING[,KEY=VALUE...]; repeatable
    #[arg(
        long = "volume",
        value_name = "SPEC",
        long_help = volume_help("Volume to serve: NAME=BACKING[,KEY=VALUE...]; repeatable.")
    )]
    volumes: Vec<VolumeSpec>,

    /// Check the configuration and that its disks exist, then exit; opens and changes no disk
    #[arg(long)]
    pub(crate) check: bool,

    /// Print a configuration file that has every setting as a comment, then exit
    #[arg(long)]
    pub(crate) example: bool,

    /// Configuration file; options override it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    state: StateArguments,

    /// Serve this volume even if its disk is not recognised as the one that the journal, vault or
    /// pool holds writes for, and write them to it; repeatable
    #[arg(long = "accept-changed-disk", value_name = "VOLUME")]
    pub(crate) accepted_disks: Vec<String>,

    /// Serve this volume even if the vault that may hold its newest data is missing, and give up
    /// that data; repeatable
    #[arg(long = "accept-lost-vault", value_name = "VOLUME")]
    pub(crate) accepted_vaults: Vec<String>,

    /// Serve this volume even if the journal that may hold its newest data is missing, and give up
    /// that data; repeatable
    #[arg(long = "accept-lost-journal", value_name = "VOLUME")]
    pub(crate) accepted_journals: Vec<String>,

    #[command(flatten)]
    settings: ProgramOptions,
}

/// The options of `forebay serve` that override a safety check for one start.
pub(crate) const OVERRIDES: [&str; 3] =
    ["--accept-changed-disk", "--accept-lost-vault", "--accept-lost-journal"];

/// Removes the options that override a safety check, with their values, from the arguments of
/// `forebay serve`.
pub(crate) fn without_overrides(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut left = Vec::new();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let text = argument.as_encoded_bytes();
        if text == b"--" {
            // Disks follow, whatever their names.
            left.push(argument);
            left.extend(arguments);
            break;
        }
        let rest = OVERRIDES.iter().find_map(|option| text.strip_prefix(option.as_bytes()));
        match rest {
            Some([]) => drop(arguments.next()),
            Some([b'=', ..]) => {}
            _ => left.push(argument),
        }
    }
    left
}

impl ServeArguments {
    /// The configuration source: these settings, and the file they name.
    pub(crate) fn source(self) -> SettingsSource {
        let volumes = self.disks.into_iter().chain(self.volumes).collect();
        let options = Settings { state: self.state.state, volumes, ..self.settings.0 };
        SettingsSource { file: self.config, options, state_default: state_default() }
    }
}

/// The state directory of this user's daemon, if no option names one.
pub(crate) fn state_default() -> Option<PathBuf> {
    default_state(rustix::process::geteuid().is_root())
}

/// The settings of the program that only the file has: the process list would show a password to
/// every user.
const FILE_ONLY: [&str; 3] = ["ups-user", "ups-password", "ups-ca"];

/// The settings of the program that are options of `forebay serve` alone.
#[derive(Debug)]
struct ProgramOptions(Settings);

impl ProgramOptions {
    fn all() -> impl Iterator<Item = &'static Setting> {
        // All commands have `--state`.
        let is_option = |key: &'static str| key != "state" && !FILE_ONLY.contains(&key);
        PROGRAM_SETTINGS.iter().filter(move |setting| is_option(setting.key))
    }

    fn option(setting: &'static Setting) -> Arg {
        let Setting { key, values, help, .. } = *setting;
        let (action, more) = match setting.is_list() {
            true => (ArgAction::Append, "; repeatable"),
            false => (ArgAction::Set, ""),
        };
        let help = format!("{}{}{more}{}", help[..1].to_uppercase(), &help[1..], default(setting));
        let accepted =
            move |text: &str| Settings::default().set(key, text).map(|()| text.to_owned());
        let name = values.trim_end_matches("...");
        Arg::new(key).long(key).value_name(name).help(help).action(action).value_parser(accepted)
    }
}

impl Args for ProgramOptions {
    fn augment_args(command: clap::Command) -> clap::Command {
        command.args(Self::all().map(Self::option))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ProgramOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut settings = Settings::default();
        for Setting { key, .. } in Self::all() {
            for text in matches.get_many::<String>(key).into_iter().flatten() {
                settings.set(key, text).expect("clap has had the value checked");
            }
        }
        Ok(Self(settings))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        Self::from_arg_matches(matches).map(|new| *self = new)
    }
}

/// The long help of a volume specification. `first` is its first sentence.
fn volume_help(first: &str) -> String {
    let keys: String = VOLUME_SETTINGS.iter().map(in_help).collect();
    format!(
        "{first}\n\
         BACKING is a path, or one of memory:SIZE, model:hdd?size=SIZE, nbd://HOST/EXPORT, \
         nbd+unix:///EXPORT?socket=PATH, rbd:POOL/IMAGE and s3://BUCKET/PREFIX. \
         memory:SIZE?save=PATH is loaded from a file and saved to it at a stop, with &every=5m \
         also every 5 minutes, and by `forebay save`. Layers may precede it, as in \
         delay(read=5ms,write=5ms):/dev/sdb.\n\
         The keys are\n{keys}\
         Write-back needs protection=journal,journal=BACKING, or protection=ups with --ups, or \
         protection=none,accept-loss=yes. Volumes may share a journal. A comma outside \
         parentheses ends BACKING if a key and = follow it."
    )
}

/// The help of the settings of the program that a command can change.
pub(crate) fn server_settings_help() -> String {
    let keys = ServerChange::KEYS.iter();
    let settings = keys.filter_map(|key| Setting::find(key, &PROGRAM_SETTINGS)).map(in_help);
    format!(
        "The settings:\n{}When the memory shrinks, the least valuable clean data is dropped and \
         dirty data is kept. Its maximum is fixed at the start. A smaller share for writes is \
         reached as dirty data is written to the disks.",
        settings.collect::<String>()
    )
}

/// The help of the settings that can change while a volume is served.
fn live_settings_help() -> String {
    let live = VOLUME_SETTINGS.iter().filter(|setting| setting.is_live);
    let keys: String = live.map(in_help).collect();
    format!(
        "The settings:\n{keys}\
         To change other settings, remove the volume and add it again."
    )
}

fn in_help(setting: &Setting) -> String {
    let Setting { key, values, help, .. } = setting;
    format!("  {key}={values}\n      {help}{}\n", default(setting))
}

fn default(setting: &Setting) -> String {
    match setting.default {
        "" => String::new(),
        default => format!(" [default: {default}]"),
    }
}

/// The subcommands of `forebay volume`.
#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// List the volumes
    List(ShowArguments),
    /// Add a volume: NAME=BACKING[,KEY=VALUE...], as in forebay serve --volume
    Add {
        /// The volume
        #[arg(
            value_name = "SPEC",
            long_help = volume_help("The volume, NAME=BACKING[,KEY=VALUE...].")
        )]
        volume: VolumeSpec,
        #[command(flatten)]
        state: StateArguments,
    },
    /// Write a volume's dirty data to its disk and remove the volume
    Remove {
        /// The volume's name
        name: String,
        #[command(flatten)]
        force: ForceArguments,
        #[command(flatten)]
        state: StateArguments,
    },
    /// Change settings of a volume while it is served
    Set {
        /// The volume's name
        name: String,
        /// The settings
        #[arg(value_name = "KEY=VALUE", required = true, long_help = live_settings_help())]
        settings: Vec<String>,
        #[command(flatten)]
        state: StateArguments,
    },
    /// Serve what a volume has in memory, and admit nothing else, as for a backup or a scan
    #[command(long_about = "Serve what a volume has in memory, and admit nothing else, as for a \
        backup or a scan.\nReads of data in memory are served from it. All others go to the disk, \
        and nothing of the volume displaces what is cached. Only pinned ranges are still read into \
        memory, and written data stays there until the disk has it. It lasts until `forebay volume \
        thaw`, or until the server ends; a setting of the volume, frozen=yes, freezes it at each \
        start.")]
    Freeze {
        /// The volume's name
        name: String,
        #[command(flatten)]
        state: StateArguments,
    },
    /// Admit data of a frozen volume into memory again
    Thaw {
        /// The volume's name
        name: String,
        #[command(flatten)]
        state: StateArguments,
    },
    /// Remove a volume whose disk does not take its data, and give up what the disk lacks
    #[command(long_about = "Remove a volume whose disk does not take its data, and give up what \
        the disk lacks.\nAn ordinary removal is tried first. If the disk refuses data or does not \
        answer, its clients are disconnected, the data is written to a file if you name one, and \
        the volume is removed. `forebay rescue apply FILE` writes the data in the file to a disk.")]
    Discard {
        /// The volume's name
        name: String,
        /// Write the data to this new file first, in the format of a vault
        #[arg(long, value_name = "FILE", conflicts_with = "yes")]
        save: Option<PathBuf>,
        /// Confirm, without a file: the data is lost for good
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        force: ForceArguments,
        #[command(flatten)]
        state: StateArguments,
    },
    /// Trust a volume's disk again after it failed a flush, and flush it
    #[command(long_about = "Trust a volume's disk again after it failed a flush, and flush it.\n\
        A disk that failed a flush may have lost earlier writes, and later flushes do not report \
        that. FLUSH and FUA therefore fail until you have checked the disk and its data, and run \
        this command.")]
    Trust {
        /// The volume's name
        name: String,
        #[command(flatten)]
        state: StateArguments,
    },
    /// Make a volume as large as its disk, which has grown
    #[command(long_about = "Make a volume as large as its disk, which has grown.\nGrow the disk \
        first (lvextend, truncate). Virtual machines over vhost-user and block devices of this \
        machine see the new size at once, those over ublk on Linux 6.16 or later; other clients \
        see it when they connect again. A volume never shrinks.")]
    Resize {
        /// The volume's name
        name: String,
        #[command(flatten)]
        state: StateArguments,
    },
    /// Measure the size below which writes of a volume are worth gathering
    #[command(long_about = "Measure the size below which writes of a volume are worth \
        gathering.\nThis reads from the disk for at most a second, at a moment without requests. \
        Volumes are calibrated automatically when they are added; repeat it if the disk was empty \
        then or has changed since.")]
    Calibrate {
        /// The volume's name
        name: String,
        #[command(flatten)]
        state: StateArguments,
    },
    /// Write a volume's dirty data to its disk
    Flush {
        /// The volume's name
        name: String,
        #[command(flatten)]
        state: StateArguments,
    },
}
