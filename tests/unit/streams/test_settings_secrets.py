"""Passwords of PostgreSQL and S3 in files."""

from pathlib import Path

import pytest

from streams.errors import SettingsError
from streams.settings import Settings


def test_the_password_of_postgresql_comes_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("p@ss/word\n")
    settings = Settings(postgres_url="postgresql://shop@db:5432/orders", postgres_password_file=str(file))
    assert settings.postgres() == "postgresql://shop:p%40ss%2Fword@db:5432/orders"


@pytest.mark.parametrize("url", ["", "postgresql://db/orders", "postgresql://shop:other@db/orders"])
def test_a_password_file_without_a_place_for_it_is_refused(tmp_path: Path, url: str) -> None:
    (tmp_path / "password").write_text("word")
    settings = Settings(postgres_url=url, postgres_password_file=str(tmp_path / "password"))
    with pytest.raises(SettingsError, match="STEADFAUST_POSTGRES_URL with a user and without a password"):
        settings.postgres()


def test_the_key_of_s3_comes_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("hush\n")
    settings = Settings(var=tmp_path, s3_bucket="ours", s3_secret_key_file=str(file))
    found = settings.bucket()
    assert found is not None
    assert found.secret_key == "hush"
    with pytest.raises(SettingsError, match="STEADFAUST_S3_SECRET_KEY_FILE are both set"):
        settings.model_copy(update={"s3_secret_key": "other"}).bucket()
