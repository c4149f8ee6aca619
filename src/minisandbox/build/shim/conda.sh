# A stand-in for conda's shell function: one environment, `testbed`, which is a plain virtual environment.
conda() {
    case "${1:-}" in
        activate)
            if [ "${2:-testbed}" = base ]; then
                [ -z "${VIRTUAL_ENV:-}" ] || ! command -v deactivate >/dev/null || deactivate
                return 0
            fi
            if [ ! -f "/opt/miniconda3/envs/${2:-testbed}/bin/activate" ]; then
                echo "EnvironmentNameNotFound: Could not find conda environment: $2" >&2
                return 1
            fi
            VIRTUAL_ENV_DISABLE_PROMPT="${VIRTUAL_ENV_DISABLE_PROMPT:-}" \
                . "/opt/miniconda3/envs/${2:-testbed}/bin/activate"
            export CONDA_DEFAULT_ENV="${2:-testbed}" CONDA_PREFIX="/opt/miniconda3/envs/${2:-testbed}"
            ;;
        deactivate)
            if command -v deactivate >/dev/null; then deactivate; fi
            unset CONDA_DEFAULT_ENV CONDA_PREFIX
            ;;
        *) command /opt/miniconda3/bin/conda "$@" ;;
    esac
}
